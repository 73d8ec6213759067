#include "ops/dispatch.h"

namespace thalweg {

void validate(const L2normArgs& args, Check& check) {
  Dim b{"B"}, t{"T"}, h{"H"}, k{"K"};
  check.input("x", args.x, kFloatTypes, b, t, h, k);
  check.output("y", args.y, {args.x.dtype}, b, t, h, k);
  if (!(args.eps >= 0.0F)) check.fail("eps", "0 or more", std::to_string(args.eps));
  check.may_alias("y", "x");
}

THALWEG_OPERATION(l2norm, L2normArgs);

}  // namespace thalweg
