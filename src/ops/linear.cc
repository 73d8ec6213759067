#include "ops/dispatch.h"
#include "ops/expert_checks.h"

namespace thalweg {

void validate(const LinearArgs& args, Check& check) {
  Dim t{"T"}, n{"N"}, k{"K"};
  check.input("x", args.x, kFloatTypes, t, k);
  check.input("weight", args.weight, kWeightTypes, n, k);
  if (args.bias.defined()) check.input("bias", args.bias, {DType::kF32}, n);
  check.output("y", args.y, {DType::kF32, args.x.dtype}, t, n);
  check_precision(check, args.precision);
}

THALWEG_OPERATION(linear, LinearArgs);

}  // namespace thalweg
