// Cases of projections.

#include "core/projections.h"
#include "cases/experts.h"

namespace thalweg::cases {
namespace {

struct Product {
  std::int64_t n;
  DType weight;
  DType y = DType::kF32;
};

struct ProjectionsShape {
  std::int64_t tokens = 1;
  std::int64_t k = 512;
  std::vector<Product> products;
  DType x = DType::kF32;
  MatmulPrecision precision = MatmulPrecision::kExact;
  bool strided = false;

  std::string name() const {
    std::string text = "M" + std::to_string(tokens) + "_K" + std::to_string(k);
    for (const Product& product : products) {
      text += "_" + std::to_string(product.n) + "x" + std::string(dtype_name(product.weight));
      if (product.y != DType::kF32) text += "y" + std::string(dtype_name(product.y));
    }
    if (x != DType::kF32) text += "_x" + std::string(dtype_name(x));
    if (strided) text += "_strided";
    if (precision == MatmulPrecision::kFast) text += "_fast";
    return text;
  }
};

Case projections_case(const ProjectionsShape& shape) {
  return make_case<ProjectionsArgs>(shape.name(), [shape](OperationProblem<ProjectionsArgs>& problem, Random& random) {
    Memory& memory = problem.memory;
    memory.set_layout(shape.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
    ProjectionsArgs& args = problem.args;
    args.x = memory.input(shape.x, {shape.tokens, shape.k}, [&] { return random.normal(); });
    ConstTensor* const weights[] = {&args.weight_0, &args.weight_1, &args.weight_2, &args.weight_3};
    Tensor* const results[] = {&args.y_0, &args.y_1, &args.y_2, &args.y_3};
    double bytes = static_cast<double>(bytes_of(shape.x, shape.tokens * shape.k));
    double flops = 0.0;
    for (std::size_t i = 0; i < shape.products.size(); ++i) {
      const Product& product = shape.products[i];
      *weights[i] = make_weights(memory, product.weight, {product.n, shape.k}, random);
      *results[i] = memory.output(product.y, {shape.tokens, product.n});
      bytes += static_cast<double>(bytes_of(product.weight, product.n * shape.k) +
                                   bytes_of(product.y, shape.tokens * product.n));
      flops += 2.0 * static_cast<double>(shape.tokens * product.n * shape.k);
    }
    args.precision = shape.precision;
    problem.cost = {bytes, flops};
    problem.find_expected = [](const ProjectionsArgs& a) {
      std::vector<Expected> all;
      for (const LinearArgs& product : ProductList(a)) {
        all.push_back(expect_linear(product, "y_" + std::to_string(all.size())).front());
      }
      return all;
    };
  });
}

}  // namespace

void add_projections_cases(std::vector<Case>& cases) {
  const DType bf16 = DType::kBF16;
  // In both precisions, which have kernels of their own.
  const auto add = [&cases](ProjectionsShape shape) {
    for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
      shape.precision = precision;
      cases.push_back(projections_case(shape));
    }
  };
  add({.tokens = 0, .products = {{40, DType::kQ4_K}, {8, DType::kF32}}});
  add({.products = {{33, DType::kQ4_K}}});
  // All formats, four at a time, rows of many and of few blocks.
  const std::vector<DType> types = weight_types();
  for (std::size_t i = 0; i < types.size(); i += 3) {
    ProjectionsShape shape{.tokens = 1 + static_cast<std::int64_t>(i) % 3};
    for (std::size_t j = i; j < std::min(i + 4, types.size()); ++j) {
      shape.products.push_back({static_cast<std::int64_t>(20 + 31 * (j - i)), types[j]});
    }
    add(shape);
  }
  // The projections of layers: tokens around the numbers that kernels take together.
  for (const std::int64_t tokens : {1, 2, 8, 31, 33, 100}) {
    add({.tokens = tokens,
         .k = 256,
         .products = {{96, DType::kQ5_K, bf16}, {64, DType::kQ4_K, bf16}, {4, DType::kF32}, {4, DType::kF32}},
         .x = bf16});
    add({.tokens = tokens,
         .k = 288,
         .products = {{70, DType::kQ8_0, bf16}, {30, DType::kQ8_0}, {30, DType::kQ5_0, bf16}},
         .x = bf16,
         .strided = true});
  }
  // Products of very different sizes, the large one first, last, and between. None has but a few results, whose
  // relative error would be large whenever these happen to be small.
  add({.products = {{3000, DType::kQ6_K}, {33, DType::kQ8_0}, {35, bf16}}});
  add({.products = {{33, DType::kQ8_0}, {35, bf16}, {3000, DType::kQ6_K}}});
  add({.tokens = 3, .products = {{17, DType::kF16}, {2100, DType::kIQ4_XS}, {19, DType::kMXFP4}}});
  add({.tokens = 5, .k = 77, .products = {{20, DType::kF32}, {30, DType::kF16}, {7, DType::kBF16}}});

  // A gated delta layer of a model of 35 billion weights: one token, a batch.
  for (const std::int64_t tokens : {1, 8}) {
    cases.push_back(for_bench(
        projections_case({.tokens = tokens,
                          .k = 2048,
                          .products = {{8192, DType::kQ5_K, bf16}, {4096, DType::kQ4_K, bf16}, {64, DType::kF32}},
                          .x = bf16,
                          .precision = MatmulPrecision::kFast})));
  }
}

}  // namespace thalweg::cases
