#include "ops/dispatch.h"

namespace thalweg {

void validate(const DequantizeArgs& args, Check& check) {
  Dim r{"R"}, k{"K"};
  check.input("blocks", args.blocks, kWeightTypes, r, k);
  check.output("values", args.values, {DType::kF32}, r, k);
}

THALWEG_OPERATION(dequantize, DequantizeArgs);

}  // namespace thalweg
