#include "ops/dispatch.h"

namespace thalweg {

void validate(const SwigluArgs& args, Check& check) {
  Dim t{"T"}, i{"I"};
  check.input("gate", args.gate, kFloatTypes, t, i);
  check.input("up", args.up, {args.gate.dtype}, t, i);
  check.output("y", args.y, {args.gate.dtype, DType::kF32}, t, i);
  check.may_alias("y", "gate");
  check.may_alias("y", "up");
}

THALWEG_OPERATION(swiglu, SwigluArgs);

}  // namespace thalweg
