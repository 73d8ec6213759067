#include <cmath>

#include "ops/cache_checks.h"
#include "ops/dispatch.h"

namespace thalweg {
void validate(const AttentionArgs& args, Check& check) {
  Dim t{"T"}, hq{"HQ"}, d{"D"}, slots{"slots"}, s{"S"}, hkv{"HKV"};
  check.input("q", args.q, kFloatTypes, t, hq, d);
  if (d.value < 1) check.fail("q", "heads of at least one element", to_string(args.q));
  check.input("k_cache", args.k_cache, kCacheTypes, slots, s, hkv, d);
  check.input("v_cache", args.v_cache, {args.k_cache.dtype}, slots, s, hkv, d);
  if (!(hkv.value > 0 && hq.value % hkv.value == 0)) {
    check.fail("k_cache", "a number of key heads that divides HQ = " + std::to_string(hq.value),
               "HKV = " + std::to_string(hkv.value));
  }
  check_cache_alignment(check, args.k_cache, args.v_cache);
  check_cache_places(check, args.cu_seqlens, args.lengths, args.slots, args.pages, t, slots, s);
  if (args.gate.defined()) check.input("gate", args.gate, {args.q.dtype}, t, hq, d);
  check.output("o", args.o, {args.q.dtype, DType::kF32}, t, hq, d);
  if (!(!args.scale || std::isfinite(*args.scale))) {
    check.fail("scale", "a finite number", std::to_string(args.scale.value_or(0.0F)));
  }
}

THALWEG_OPERATION(attention, AttentionArgs);

}  // namespace thalweg
