#include <cmath>

#include "ops/dispatch.h"

namespace thalweg {
namespace {

void check_values(const AttentionArgs& args, const Check& check, std::int64_t sequences, std::int64_t slots,
                  std::int64_t capacity) {
  const auto* bounds = static_cast<const std::int32_t*>(args.cu_seqlens.data);
  const auto* lengths = static_cast<const std::int32_t*>(args.lengths.data);
  const auto* places = static_cast<const std::int32_t*>(args.slots.data);
  for (std::int64_t n = 0; n < sequences; ++n) {
    const std::int32_t fresh = bounds[n + 1] - bounds[n];
    const auto given = [n](std::int32_t value) { return std::to_string(value) + " for sequence " + std::to_string(n); };
    if (lengths[n] < fresh || lengths[n] > capacity) {
      check.fail("lengths",
                 "between the sequence's " + std::to_string(fresh) +
                     " new tokens and the cache's S = " + std::to_string(capacity),
                 given(lengths[n]));
    }
    if (args.slots.defined() && (places[n] < 0 || places[n] >= slots)) {
      check.fail("slots", "a slot from 0 to " + std::to_string(slots - 1), given(places[n]));
    }
  }
}

}  // namespace

void validate(const AttentionArgs& args, Check& check) {
  Dim t{"T"}, hq{"HQ"}, d{"D"}, slots{"slots"}, s{"S"}, hkv{"HKV"}, n{"N"};
  const Dim b{"B", 1};
  check.input("q", args.q, kFloatTypes, t, hq, d);
  check.require(d.value >= 1, "q", "heads of at least one element", to_string(args.q));
  check.input("k_cache", args.k_cache, kFloatTypes, slots, s, hkv, d);
  check.input("v_cache", args.v_cache, {args.k_cache.dtype}, slots, s, hkv, d);
  check.require(hkv.value > 0 && hq.value % hkv.value == 0, "k_cache",
                "a number of key heads that divides HQ = " + std::to_string(hq.value),
                "HKV = " + std::to_string(hkv.value));
  check.require(args.cu_seqlens.defined(), "cu_seqlens", "I32 [N+1]", "nothing");
  check.cu_seqlens(args.cu_seqlens, b, t, n);
  check.input("lengths", args.lengths, {DType::kI32}, n);
  if (args.slots.defined()) {
    check.input("slots", args.slots, {DType::kI32}, n);
  } else {
    check.require(n.value <= slots.value, "k_cache", "a slot for each of N = " + std::to_string(n.value) + " sequences",
                  std::to_string(slots.value) + " slots");
  }
  if (args.gate.defined()) check.input("gate", args.gate, {args.q.dtype}, t, hq, d);
  check.output("o", args.o, {args.q.dtype, DType::kF32}, t, hq, d);
  check.require(!args.scale || std::isfinite(*args.scale), "scale", "a finite number",
                std::to_string(args.scale.value_or(0.0F)));
  if (check.host_values()) check_values(args, check, n.value, slots.value, s.value);
}

THALWEG_OPERATION(attention, AttentionArgs);

}  // namespace thalweg
