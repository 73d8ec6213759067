// Cases of linear.

#include "cases/experts.h"
#include "reference/moe.h"

namespace thalweg::cases {

std::vector<Expected> expect_linear(const LinearArgs& args, const std::string& output) {
  using reference::Precision;
  const reference::Array exact = reference::linear(args, Precision::kExact);
  Bound fast;
  if (args.precision == MatmulPrecision::kFast) {
    fast = bf16_product_bound(exact, reference::linear(args, Precision::k16Bit));
  }
  return {expect(output, args.y, exact, reference::linear(args, Precision::kRounded),
                 f32_bound(static_cast<double>(args.weight.dim(1))), fast, q8_product_bound())};
}

namespace {

struct LinearShape {
  std::int64_t tokens = 7;
  std::int64_t n = 40;
  std::int64_t k = 512;
  DType weight = DType::kQ4_K;
  DType x = DType::kF32;
  DType y = DType::kF32;
  MatmulPrecision precision = MatmulPrecision::kExact;
  bool bias = false;
  bool strided = false;
  double size = 1.0;  // of the activations

  std::string name() const {
    std::string text = "M" + std::to_string(tokens) + "_N" + std::to_string(n) + "_K" + std::to_string(k) + "_" +
                       std::string(dtype_name(weight));
    if (x != DType::kF32) text += "_x" + std::string(dtype_name(x));
    if (y != DType::kF32) text += "_y" + std::string(dtype_name(y));
    if (bias) text += "_bias";
    if (strided) text += "_strided";
    if (size != 1.0) text += "_1e5";
    if (precision == MatmulPrecision::kFast) text += "_fast";
    return text;
  }
};

Case linear_case(const LinearShape& shape) {
  return make_case<LinearArgs>(shape.name(), [shape](OperationProblem<LinearArgs>& problem, Random& random) {
    Memory& memory = problem.memory;
    memory.set_layout(shape.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
    LinearArgs& args = problem.args;
    args.x = memory.input(shape.x, {shape.tokens, shape.k}, [&] { return shape.size * random.normal(); });
    args.weight = make_weights(memory, shape.weight, {shape.n, shape.k}, random);
    if (shape.bias) args.bias = memory.input(DType::kF32, {shape.n}, [&] { return random.normal(); });
    args.y = memory.output(shape.y, {shape.tokens, shape.n});
    args.precision = shape.precision;
    problem.find_expected = [](const LinearArgs& a) { return expect_linear(a); };
    problem.cost = {
        static_cast<double>(bytes_of(shape.weight, shape.n * shape.k) + bytes_of(shape.x, shape.tokens * shape.k) +
                            bytes_of(shape.y, shape.tokens * shape.n)),
        2.0 * static_cast<double>(shape.tokens * shape.n * shape.k)};
  });
}

}  // namespace

void add_linear_cases(std::vector<Case>& cases) {
  // In both precisions, which have kernels of their own.
  const auto add = [&cases](LinearShape shape) {
    for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
      shape.precision = precision;
      cases.push_back(linear_case(shape));
    }
  };
  for (const DType weight : weight_types()) add({.weight = weight});
  add({.tokens = 0});
  add({.tokens = 1, .n = 33, .bias = true});
  // One row of long and short rows of weights, whose K tiles begin at multiples of two bytes or of 16.
  for (const DType weight : {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kQ8_0}) {
    for (const std::int64_t k : {256, 768, 2048, 17664}) add({.tokens = 1, .n = 112, .k = k, .weight = weight});
    add({.tokens = 1, .n = 35008, .k = 256, .weight = weight, .x = DType::kBF16, .y = DType::kBF16, .bias = true});
  }
  // A relative bound on one output would fail whenever that happens to be small.
  add({.tokens = 64, .n = 1, .weight = DType::kQ8_0});
  add({.tokens = 100, .n = 70, .k = 288, .weight = DType::kQ5_0, .bias = true});
  add({.tokens = 13, .x = DType::kBF16, .y = DType::kBF16, .bias = true});
  add({.weight = DType::kQ4_0, .x = DType::kF16, .strided = true});
  add({.weight = DType::kIQ4_XS, .strided = true});
  add({.weight = DType::kQ5_K, .size = 1e5});
  add({.n = 50, .k = 77, .weight = DType::kF32, .bias = true});
  // Rows so long that GPUs share them out: to three or more warps, and to more than a block has.
  for (const std::int64_t k : {4128, 17440}) {
    for (const DType weight : {DType::kQ8_0, DType::kMXFP4, DType::kQ4_1}) {
      add({.tokens = 2, .n = 150, .k = k, .weight = weight, .bias = true});
      add({.tokens = 3, .n = 70, .k = k, .weight = weight, .strided = true});
    }
  }
  for (const std::int64_t k : {4352, 17664}) {
    for (const DType weight : {DType::kQ4_K, DType::kQ6_K, DType::kQ3_K}) {
      add({.tokens = 2, .n = 150, .k = k, .weight = weight});
      add({.tokens = 3, .n = 70, .k = k, .weight = weight, .strided = true});
    }
  }
  // Rows that begin at multiples of 16 bytes, whose slices of 256 weights do not; of MXFP4 all lengths that Hopper's
  // matrix units take row by row, few tiles and more than are under way at once.
  for (const std::int64_t k : {512, 1024, 1536, 2048, 4096}) {
    add({.tokens = 2, .n = 170, .k = k, .weight = DType::kMXFP4, .bias = true});
    add({.tokens = 134, .n = 120 + 100 * 1024 / k, .k = k, .weight = DType::kMXFP4, .x = DType::kBF16});
  }
  add({.tokens = 3, .n = 40, .k = 1024, .weight = DType::kMXFP4, .strided = true});
  for (const DType weight : {DType::kQ2_K, DType::kQ3_K, DType::kQ6_K, DType::kIQ4_XS}) {
    add({.tokens = 20, .n = 150, .k = 2048, .weight = weight});
  }
  // On Hopper, blocks that share the columns of tiles of 192 rows.
  add({.tokens = 9, .n = 2100, .k = 2048, .weight = DType::kQ5_K, .x = DType::kBF16, .y = DType::kBF16, .bias = true});
  add({.tokens = 3, .n = 16, .k = 255, .weight = DType::kBF16, .x = DType::kBF16, .strided = true});
  add({.tokens = 5, .n = 65, .k = 1000, .weight = DType::kF16, .y = DType::kF32, .bias = true});
  // Tiles of every width, one more and one less than their bounds, and rows of blocks that begin at odd addresses.
  for (const std::int64_t tokens : {31, 32, 33, 65, 97, 129, 193, 257}) {
    add({.tokens = tokens, .n = 130, .weight = tokens % 2 == 0 ? DType::kQ8_0 : DType::kQ4_K});
  }
  for (const DType weight : {DType::kQ4_0, DType::kQ5_1, DType::kMXFP4, DType::kQ8_0, DType::kIQ4_NL}) {
    add({.tokens = 40, .n = 129, .k = 416, .weight = weight});
  }
  for (const DType weight : {DType::kQ2_K, DType::kQ3_K, DType::kQ6_K, DType::kIQ4_XS}) {
    add({.tokens = 40, .n = 131, .k = 1280, .weight = weight, .x = DType::kBF16});
  }
  // Two, four or eight rows together are a multiple of 16 bytes.
  add({.tokens = 40, .n = 130, .k = 512, .weight = DType::kQ2_K});
  add({.tokens = 70, .n = 140, .k = 512, .weight = DType::kQ3_K});
  add({.tokens = 140, .n = 264, .k = 768, .weight = DType::kQ6_K});
  add({.tokens = 100, .n = 128, .k = 456, .weight = DType::kF16, .strided = true});
  add({.tokens = 300, .n = 257, .k = 136, .weight = DType::kBF16, .x = DType::kBF16, .y = DType::kBF16});
  // As libraries of dense products take them: rows at multiples of 16 bytes.
  add({.tokens = 48, .n = 136, .k = 264, .weight = DType::kBF16, .x = DType::kBF16, .y = DType::kBF16});
  add({.tokens = 130, .n = 64, .k = 1024, .weight = DType::kBF16, .x = DType::kF16, .y = DType::kF32});
  add({.tokens = 9, .n = 256, .k = 512, .weight = DType::kBF16, .strided = true});

  for (const std::int64_t tokens : {1, 64, 1024}) {
    for (const DType weight : {DType::kQ4_K, DType::kQ8_0, DType::kBF16}) {
      for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
        if (precision == MatmulPrecision::kFast && !is_block_format(weight)) continue;
        cases.push_back(
            for_bench(linear_case({.tokens = tokens, .n = 2048, .k = 2048, .weight = weight, .precision = precision})));
      }
    }
  }
}

}  // namespace thalweg::cases
