#include "ops/cache_checks.h"

namespace thalweg {

void check_cache_places(Check& check, const ConstTensor& cu_seqlens, const ConstTensor& lengths,
                        const ConstTensor& slots, const Dim& t, const Dim& num_slots, const Dim& s) {
  Dim n{"N"};
  const Dim b{"B", 1};
  if (!cu_seqlens.defined()) check.fail("cu_seqlens", "I32 [N+1]", "nothing");
  check.cu_seqlens(cu_seqlens, b, t, n);
  check.input("lengths", lengths, {DType::kI32}, n);
  if (slots.defined()) {
    check.input("slots", slots, {DType::kI32}, n);
  } else {
    if (n.value > num_slots.value) {
      check.fail("k_cache", "a slot for each of N = " + std::to_string(n.value) + " sequences",
                 std::to_string(num_slots.value) + " slots");
    }
  }
  if (!check.host_values()) return;
  const auto* bounds = static_cast<const std::int32_t*>(cu_seqlens.data);
  const auto* totals = static_cast<const std::int32_t*>(lengths.data);
  const auto* places = static_cast<const std::int32_t*>(slots.data);
  for (std::int64_t i = 0; i < n.value; ++i) {
    const std::int32_t fresh = bounds[i + 1] - bounds[i];
    const auto given = [i](std::int32_t value) { return std::to_string(value) + " for sequence " + std::to_string(i); };
    if (totals[i] < fresh || totals[i] > s.value) {
      check.fail("lengths",
                 "between the sequence's " + std::to_string(fresh) +
                     " new tokens and the cache's S = " + std::to_string(s.value),
                 given(totals[i]));
    }
    if (slots.defined() && (places[i] < 0 || places[i] >= num_slots.value)) {
      check.fail("slots", "a slot from 0 to " + std::to_string(num_slots.value - 1), given(places[i]));
    }
  }
}

}  // namespace thalweg
