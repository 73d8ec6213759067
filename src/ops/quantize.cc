#include <vector>

#include "ops/dispatch.h"

namespace thalweg {
namespace {

const std::vector<DType>& packable_types() {
  static const std::vector<DType> types = [] {
    std::vector<DType> list;
    for (const DType dtype : kWeightTypes) {
      if (can_pack(dtype)) list.push_back(dtype);
    }
    return list;
  }();
  return types;
}

}  // namespace

void validate(const QuantizeArgs& args, Check& check) {
  Dim r{"R"}, k{"K"};
  check.input("values", args.values, {DType::kF32}, r, k);
  check.output("blocks", args.blocks, packable_types(), r, k);
}

THALWEG_OPERATION(quantize, QuantizeArgs);

}  // namespace thalweg
