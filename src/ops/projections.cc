#include "ops/dispatch.h"
#include "ops/expert_checks.h"

namespace thalweg {

void validate(const ProjectionsArgs& args, Check& check) {
  struct Product {
    std::string_view weight_name;
    std::string_view y_name;
    std::string_view size_name;
    const ConstTensor& weight;
    const Tensor& y;
  };
  const Product products[] = {{"weight_0", "y_0", "N_0", args.weight_0, args.y_0},
                              {"weight_1", "y_1", "N_1", args.weight_1, args.y_1},
                              {"weight_2", "y_2", "N_2", args.weight_2, args.y_2},
                              {"weight_3", "y_3", "N_3", args.weight_3, args.y_3}};
  Dim t{"T"}, k{"K"};
  check.input("x", args.x, kFloatTypes, t, k);
  for (const Product& product : products) {
    const bool first = &product == products;
    if (!first && !product.weight.defined() && !product.y.defined()) continue;
    Dim n{product.size_name};
    check.input(product.weight_name, product.weight, kWeightTypes, n, k);
    check.output(product.y_name, product.y, {DType::kF32, args.x.dtype}, t, n);
  }
  check_precision(check, args.precision);
}

THALWEG_OPERATION(projections, ProjectionsArgs);

}  // namespace thalweg
