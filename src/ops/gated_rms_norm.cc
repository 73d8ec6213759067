#include "ops/dispatch.h"

namespace thalweg {

void validate(const GatedRmsNormArgs& args, Check& check) {
  Dim t{"T"}, h{"H"}, d{"D"};
  check.input("x", args.x, kFloatTypes, t, h, d);
  check.input("z", args.z, {args.x.dtype}, t, h, d);
  check.input("weight", args.weight, kFloatTypes, d);
  check.output("y", args.y, {args.x.dtype, DType::kF32}, t, h, d);
  if (d.value < 1) check.fail("x", "rows of at least one element", to_string(args.x));
  if (!(args.eps >= 0.0F)) check.fail("eps", "0 or more", std::to_string(args.eps));
  check.may_alias("y", "x");
  check.may_alias("y", "z");
}

THALWEG_OPERATION(gated_rms_norm, GatedRmsNormArgs);

}  // namespace thalweg
