#include "ops/dispatch.h"

namespace thalweg {

void validate(const AddArgs& args, Check& check) {
  Dim t{"T"}, d{"D"};
  check.input("a", args.a, kFloatTypes, t, d);
  check.input("b", args.b, {args.a.dtype}, t, d);
  check.output("y", args.y, {args.a.dtype, DType::kF32}, t, d);
  check.may_alias("y", "a");
  check.may_alias("y", "b");
}

THALWEG_OPERATION(add, AddArgs);

}  // namespace thalweg
