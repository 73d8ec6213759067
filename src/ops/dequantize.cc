#include "ops/dispatch.h"

namespace thalweg {

void validate(const DequantizeArgs& args, Check& check) {
  Dim e{"E"}, r{"R"}, k{"K"};
  if (args.blocks.rank == 3) {
    check.input("blocks", args.blocks, kWeightTypes, e, r, k);
    check.output("values", args.values, {DType::kF32}, e, r, k);
  } else {
    check.input("blocks", args.blocks, kWeightTypes, r, k);
    check.output("values", args.values, {DType::kF32}, r, k);
  }
}

THALWEG_OPERATION(dequantize, DequantizeArgs);

}  // namespace thalweg
