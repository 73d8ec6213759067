#include <algorithm>
#include <cmath>
#include <string>
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

// Packing is far slower than reading.
void check_finite(const ConstTensor& values, const Check& check) {
  if (!check.host_values()) return;
  const bool matrices = values.rank == 3;
  const std::int64_t width = values.dim(values.rank - 1);
  for (std::int64_t e = 0; e < (matrices ? values.dim(0) : 1); ++e) {
    for (std::int64_t r = 0; r < values.dim(values.rank - 2); ++r) {
      const auto* row = static_cast<const float*>(matrices ? values.row(e, r) : values.row(r));
      float sum = 0.0F;  // NaN if any of them is not finite: 0 x is
      for (std::int64_t i = 0; i < width; ++i) sum += 0.0F * row[i];
      if (sum == 0.0F) continue;
      const float* bad = std::find_if(row, row + width, [](float x) { return !std::isfinite(x); });
      check.fail("values", "finite numbers",
                 std::to_string(*bad) + " at [" + (matrices ? std::to_string(e) + "," : "") + std::to_string(r) + "," +
                     std::to_string(bad - row) + "]");
    }
  }
}

}  // namespace

void validate(const QuantizeArgs& args, Check& check) {
  Dim e{"E"}, r{"R"}, k{"K"};
  if (args.values.rank == 3) {
    check.input("values", args.values, {DType::kF32}, e, r, k);
    check.output("blocks", args.blocks, packable_types(), e, r, k);
  } else {
    check.input("values", args.values, {DType::kF32}, r, k);
    check.output("blocks", args.blocks, packable_types(), r, k);
  }
  check_finite(args.values, check);
}

THALWEG_OPERATION(quantize, QuantizeArgs);

}  // namespace thalweg
