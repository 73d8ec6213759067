#include "ops/cache_checks.h"

namespace thalweg {
namespace {

std::string for_sequence(std::int32_t value, std::int64_t n) {
  return std::to_string(value) + " for sequence " + std::to_string(n);
}

void check_length(const Check& check, std::int32_t length, std::int32_t fresh, std::int64_t capacity, bool pages,
                  std::int64_t n) {
  if (length >= fresh && length <= capacity) return;
  check.fail("lengths",
             "between the sequence's " + std::to_string(fresh) + " new tokens and the " +
                 (pages ? "pages' P*S = " : "cache's S = ") + std::to_string(capacity),
             for_sequence(length, n));
}

// The pages of the first `length` positions.
void check_pages(const Check& check, const std::int32_t* pages, std::int32_t length, std::int64_t num_pages,
                 std::int64_t page_tokens, std::int64_t n) {
  for (std::int64_t i = 0; i * page_tokens < length; ++i) {
    if (pages[i] < 0 || pages[i] >= num_pages) {
      check.fail("pages",
                 "for each of the sequence's " + std::to_string(length) + " tokens a page from 0 to " +
                     std::to_string(num_pages - 1),
                 for_sequence(pages[i], n));
    }
  }
}

}  // namespace

void check_cache_places(Check& check, const ConstTensor& cu_seqlens, const ConstTensor& lengths,
                        const ConstTensor& slots, const ConstTensor& pages, const Dim& t, const Dim& num_slots,
                        const Dim& s) {
  Dim n{"N"}, p{"P"};
  const Dim b{"B", 1};
  if (!cu_seqlens.defined()) check.fail("cu_seqlens", "I32 [N+1]", "nothing");
  check.cu_seqlens(cu_seqlens, b, t, n);
  check.input("lengths", lengths, {DType::kI32}, n);
  if (pages.defined()) {
    if (slots.defined()) check.fail("pages", "nothing beside slots", to_string(pages));
    check.input("pages", pages, {DType::kI32}, n, p);
    if (p.value < 1) check.fail("pages", "at least one page for each sequence", to_string(pages));
  } else if (slots.defined()) {
    check.input("slots", slots, {DType::kI32}, n);
  } else if (n.value > num_slots.value) {
    check.fail("k_cache", "a slot for each of N = " + std::to_string(n.value) + " sequences",
               std::to_string(num_slots.value) + " slots");
  }
  if (!check.host_values()) return;
  const auto* bounds = static_cast<const std::int32_t*>(cu_seqlens.data);
  const auto* totals = static_cast<const std::int32_t*>(lengths.data);
  const auto* places = static_cast<const std::int32_t*>(slots.data);
  const std::int64_t capacity = pages.defined() ? p.value * s.value : s.value;
  for (std::int64_t i = 0; i < n.value; ++i) {
    const auto* row = pages.defined() ? static_cast<const std::int32_t*>(pages.row(i)) : nullptr;
    const bool absent = row != nullptr ? row[0] == -1 : slots.defined() && places[i] == -1;
    if (absent) continue;
    check_length(check, totals[i], bounds[i + 1] - bounds[i], capacity, row != nullptr, i);
    if (row != nullptr) check_pages(check, row, totals[i], num_slots.value, s.value, i);
    if (slots.defined() && (places[i] < 0 || places[i] >= num_slots.value)) {
      check.fail("slots", "-1 or a slot from 0 to " + std::to_string(num_slots.value - 1), for_sequence(places[i], i));
    }
  }
}

}  // namespace thalweg
