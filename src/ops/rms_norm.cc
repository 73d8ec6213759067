#include "ops/dispatch.h"

namespace thalweg {
namespace {

template <class... Dims>
void validate_rows(const RmsNormArgs& args, Check& check, Dims&... dims) {
  check.input("x", args.x, kFloatTypes, dims...);
  if (args.delta.defined()) check.input("delta", args.delta, kFloatTypes, dims...);
  if (args.sum.defined()) check.output("sum", args.sum, {args.x.dtype}, dims...);
  check.output("y", args.y, kFloatTypes, dims...);
}

}  // namespace

void validate(const RmsNormArgs& args, Check& check) {
  Dim t{"T"}, h{"H"}, d{"D"};
  if (args.x.rank == 2) {
    validate_rows(args, check, t, d);
  } else {
    if (args.x.rank != 3) check.fail("x", "F32, F16 or BF16 [T,D] or [T,H,D]", to_string(args.x));
    validate_rows(args, check, t, h, d);
  }
  check.input("weight", args.weight, kFloatTypes, d);
  if (d.value < 1) check.fail("x", "rows of at least one element", to_string(args.x));
  if (args.sum.defined() && !args.delta.defined()) check.fail("sum", "nothing without delta", to_string(args.sum));
  if (!(args.eps >= 0.0F)) check.fail("eps", "0 or more", std::to_string(args.eps));
  check.may_alias("y", "x");
  check.may_alias("y", "delta");
  check.may_alias("sum", "x");
}

THALWEG_OPERATION(rms_norm, RmsNormArgs);

}  // namespace thalweg
