#include <algorithm>
#include <vector>

#include "core/cache_places.h"
#include "ops/cache_checks.h"
#include "ops/dispatch.h"

namespace thalweg {
namespace {

// The first value that occurs twice; -1: none.
std::int64_t twice(std::vector<std::int64_t> values) {
  std::sort(values.begin(), values.end());
  const auto found = std::adjacent_find(values.begin(), values.end());
  return found != values.end() ? *found : -1;
}

// The pages that new tokens go to, of each sequence in turn.
std::vector<std::int64_t> written_pages(const StoreKvArgs& args) {
  const CachePlaces places(args.slots, args.pages, args.k_cache);
  const Sequences sequences(args.cu_seqlens, 1, args.k.dim(0));
  std::vector<std::int64_t> pages;
  for (std::int64_t n = 0; n < sequences.count(); ++n) {
    if (sequences.length(n) == 0 || places.absent(n)) continue;
    const std::int64_t end = static_cast<const std::int32_t*>(args.lengths.data)[n];
    const std::int64_t page_tokens = args.k_cache.dim(1);
    for (std::int64_t i = (end - sequences.length(n)) / page_tokens; i * page_tokens < end; ++i) {
      pages.push_back(places.place(n, i * page_tokens).slot);
    }
  }
  return pages;
}

}  // namespace

void validate(const StoreKvArgs& args, Check& check) {
  Dim t{"T"}, hkv{"HKV"}, d{"D"}, slots{"slots"}, s{"S"};
  check.input("k", args.k, kFloatTypes, t, hkv, d);
  check.input("v", args.v, {args.k.dtype}, t, hkv, d);
  check.output("k_cache", args.k_cache, kCacheTypes, slots, s, hkv, d);
  check.output("v_cache", args.v_cache, {args.k_cache.dtype}, slots, s, hkv, d);
  check_cache_alignment(check, args.k_cache, args.v_cache);
  check_cache_places(check, args.cu_seqlens, args.lengths, args.slots, args.pages, t, slots, s);
  if (!check.host_values()) return;
  // Of two writers of one position, chance would decide which is last.
  if (args.slots.defined()) {
    const auto* first = static_cast<const std::int32_t*>(args.slots.data);
    std::vector<std::int64_t> places(first, first + args.slots.dim(0));
    std::erase(places, -1);
    if (const std::int64_t place = twice(places); place >= 0) {
      check.fail("slots", "each slot once", std::to_string(place) + " twice");
    }
  } else if (args.pages.defined()) {
    if (const std::int64_t page = twice(written_pages(args)); page >= 0) {
      check.fail("pages", "new tokens on pages of their own", std::to_string(page) + " twice");
    }
  }
}

THALWEG_OPERATION(store_kv, StoreKvArgs);

}  // namespace thalweg
