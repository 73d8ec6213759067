#include "ops/dispatch.h"

namespace thalweg {

void validate(const SplitQkvzArgs& args, Check& check) {
  Dim t{"T"}, hk{"HK"}, width{"2*K+2*RV"}, k{"K"}, rv{"RV"};
  check.input("x", args.x, kFloatTypes, t, hk, width);
  check.output("q", args.q, {args.x.dtype}, t, hk, k);
  check.output("k", args.k, {args.x.dtype}, t, hk, k);
  check.output("v", args.v, {args.x.dtype}, t, hk, rv);
  check.output("z", args.z, {args.x.dtype}, t, hk, rv);
  if (!(width.value == 2 * k.value + 2 * rv.value)) {
    check.fail("x", "2*K+2*RV=" + std::to_string(2 * k.value + 2 * rv.value) + " columns of a head", to_string(args.x));
  }
}

THALWEG_OPERATION(split_qkvz, SplitQkvzArgs);

}  // namespace thalweg
