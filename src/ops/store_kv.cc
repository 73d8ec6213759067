#include <algorithm>
#include <vector>

#include "ops/cache_checks.h"
#include "ops/dispatch.h"

namespace thalweg {

void validate(const StoreKvArgs& args, Check& check) {
  Dim t{"T"}, hkv{"HKV"}, d{"D"}, slots{"slots"}, s{"S"};
  check.input("k", args.k, kFloatTypes, t, hkv, d);
  check.input("v", args.v, {args.k.dtype}, t, hkv, d);
  check.output("k_cache", args.k_cache, kFloatTypes, slots, s, hkv, d);
  check.output("v_cache", args.v_cache, {args.k_cache.dtype}, slots, s, hkv, d);
  check_cache_places(check, args.cu_seqlens, args.lengths, args.slots, t, slots, s);
  if (!check.host_values() || !args.slots.defined()) return;
  // Two writers of one place would leave it to chance who is last.
  const auto* first = static_cast<const std::int32_t*>(args.slots.data);
  std::vector<std::int32_t> places(first, first + args.slots.dim(0));
  std::sort(places.begin(), places.end());
  const auto twice = std::adjacent_find(places.begin(), places.end());
  if (twice != places.end()) check.fail("slots", "each slot once", std::to_string(*twice) + " twice");
}

THALWEG_OPERATION(store_kv, StoreKvArgs);

}  // namespace thalweg
