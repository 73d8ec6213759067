#include "ops/dispatch.h"

namespace thalweg {

void validate(const RmsNormArgs& args, Check& check) {
  Dim t{"T"}, h{"H"}, d{"D"};
  const std::initializer_list<DType> results = {args.x.dtype, DType::kF32};
  if (args.x.rank == 2) {
    check.input("x", args.x, kFloatTypes, t, d);
    check.input("weight", args.weight, kFloatTypes, d);
    check.output("y", args.y, results, t, d);
  } else {
    if (args.x.rank != 3) check.fail("x", "F32, F16 or BF16 [T,D] or [T,H,D]", to_string(args.x));
    check.input("x", args.x, kFloatTypes, t, h, d);
    check.input("weight", args.weight, kFloatTypes, d);
    check.output("y", args.y, results, t, h, d);
  }
  if (d.value < 1) check.fail("x", "rows of at least one element", to_string(args.x));
  if (!(args.eps >= 0.0F)) check.fail("eps", "0 or more", std::to_string(args.eps));
  check.may_alias("y", "x");
}

THALWEG_OPERATION(rms_norm, RmsNormArgs);

}  // namespace thalweg
