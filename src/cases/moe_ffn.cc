// Cases of moe_ffn.

#include <cmath>

#include "cases/experts.h"
#include "reference/moe.h"

namespace thalweg::cases {
namespace {

using reference::Array;
using reference::Precision;

struct FfnShape {
  std::int64_t tokens = 5;
  std::int64_t slots = 2;
  std::int64_t experts = 6;
  std::int64_t hidden = 256;
  std::int64_t inner = 256;
  std::int64_t shared = 0;  // 0: no shared expert
  DType weight = DType::kQ4_K;
  DType down = DType::kQ4_K;
  DType router = DType::kF32;
  DType shared_weight = DType::kQ8_0;
  DType x = DType::kF32;
  DType y = DType::kF32;
  MatmulPrecision precision = MatmulPrecision::kExact;
  bool renormalize = true;
  bool fused = false;  // gate and up are halves of one tensor
  bool strided = false;
  double size = 1.0;
  bool large = false;
  std::int64_t here = 0;  // of the experts, from `first` on; 0: all
  std::int64_t first = 0;
  RouterScore score = RouterScore::kSoftmax;
  bool bias = false;

  std::string name() const {
    std::string text = "M" + std::to_string(tokens) + "_S" + std::to_string(slots) + "_E" + std::to_string(experts) +
                       "_D" + std::to_string(hidden) + "_I" + std::to_string(inner) + "_" +
                       std::string(dtype_name(weight));
    if (down != weight) text += "_down" + std::string(dtype_name(down));
    if (router != DType::kF32) text += "_router" + std::string(dtype_name(router));
    if (shared > 0) text += "_shared" + std::to_string(shared) + std::string(dtype_name(shared_weight));
    if (x != DType::kF32) text += "_x" + std::string(dtype_name(x));
    if (y != DType::kF32) text += "_y" + std::string(dtype_name(y));
    if (!renormalize) text += "_plain";
    if (fused) text += "_fused";
    if (strided) text += "_strided";
    if (here > 0) text += "_experts" + std::to_string(first) + "to" + std::to_string(first + here - 1);
    if (score == RouterScore::kSigmoid) text += "_sigmoid";
    if (bias) text += "_bias";
    if (size != 1.0) text += "_1e5";
    if (precision == MatmulPrecision::kFast) text += "_fast";
    return text;
  }
};

}  // namespace

// MatmulPrecision::kFast may be off by twice what the plain implementation is that rounds every operand as coarsely as
// a kernel may: derived from the inputs at hand, so that it holds where sums cancel too.
std::vector<Expected> expect_ffn(const MoeFfnArgs& args) {
  const Array exact = reference::moe_ffn(args, Precision::kExact);
  const Bound f32 = f32_bound(static_cast<double>(args.x.dim(1) + args.gate.dim(1)));
  const auto fast = [&](Precision precision) {
    const double l2 = f32.l2 + 2.0 * distance(exact, reference::moe_ffn(args, precision)).l2;
    return Bound{l2, 4.0 * l2};
  };
  Expected result = expect("y", args.y, exact, reference::moe_ffn(args, Precision::kRounded), f32);
  if (args.precision == MatmulPrecision::kFast) {
    result.bound_16bit = fast(Precision::k16Bit);
    result.bound_8bit = fast(Precision::k8Bit);
  }
  return {result};
}

namespace {

Case ffn_case(const FfnShape& shape) {
  return make_case<MoeFfnArgs>(shape.name(), [shape](OperationProblem<MoeFfnArgs>& problem, Random& random) {
    Memory& memory = problem.memory;
    memory.set_layout(shape.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
    const auto weights = [&](DType dtype, const std::vector<std::int64_t>& sizes) {
      return shape.large ? make_large_weights(memory, dtype, sizes, random)
                         : make_weights(memory, dtype, sizes, random);
    };
    MoeFfnArgs& args = problem.args;
    args.x = memory.input(shape.x, {shape.tokens, shape.hidden}, [&] { return shape.size * random.normal(); });
    args.router = make_weights(memory, shape.router, {shape.experts, shape.hidden}, random);
    const std::int64_t here = shape.here > 0 ? shape.here : shape.experts;
    if (shape.fused) {
      const Tensor gate_up = weights(shape.weight, {here, 2 * shape.inner, shape.hidden});
      args.up = second_half(gate_up);
      Tensor gate = gate_up;
      gate.shape[1] = shape.inner;
      args.gate = gate;
    } else {
      args.gate = weights(shape.weight, {here, shape.inner, shape.hidden});
      args.up = weights(shape.weight, {here, shape.inner, shape.hidden});
    }
    args.down = weights(shape.down, {here, shape.hidden, shape.inner});
    args.first_expert = static_cast<int>(shape.first);
    if (shape.shared > 0) {
      args.shared_gate = weights(shape.shared_weight, {shape.shared, shape.hidden});
      args.shared_up = weights(shape.shared_weight, {shape.shared, shape.hidden});
      args.shared_down = weights(shape.shared_weight, {shape.hidden, shape.shared});
      args.shared_router = memory.input(shape.x, {shape.hidden}, [&] { return 0.05 * random.normal(); });
    }
    args.y = memory.output(shape.y, {shape.tokens, shape.hidden});
    args.top_k = static_cast<int>(shape.slots);
    args.renormalize = shape.renormalize;
    args.score = shape.score;
    if (shape.bias)
      args.router_bias = memory.input(DType::kF32, {shape.experts}, [&] { return 0.1 * random.normal(); });
    args.precision = shape.precision;
    problem.find_expected = expect_ffn;
    // The benchmark's tokens hit as many experts as uniform routing lets expect.
    const auto experts = static_cast<double>(shape.experts);
    const double missed = std::pow(1.0 - static_cast<double>(shape.slots) / experts, static_cast<double>(shape.tokens));
    const std::int64_t matrix = shape.inner * shape.hidden;
    const std::int64_t shared = 3 * shape.shared * shape.hidden;
    problem.cost = {experts * (1.0 - missed) *
                            static_cast<double>(2 * bytes_of(shape.weight, matrix) + bytes_of(shape.down, matrix)) +
                        static_cast<double>(bytes_of(shape.shared_weight, shared) +
                                            bytes_of(shape.router, shape.experts * shape.hidden) +
                                            bytes_of(shape.x, shape.tokens * shape.hidden) +
                                            bytes_of(shape.y, shape.tokens * shape.hidden)),
                    2.0 * static_cast<double>(shape.tokens) *
                        static_cast<double>(3 * shape.slots * matrix + shared + shape.experts * shape.hidden)};
  });
}

// Adds a shape in both precisions, which have kernels of their own.
auto adder(std::vector<Case>& cases) {
  return [&cases](FfnShape shape) {
    for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
      shape.precision = precision;
      cases.push_back(ffn_case(shape));
    }
  };
}

void add_options(std::vector<Case>& cases) {
  const auto add = adder(cases);
  add({});
  add({.tokens = 0, .shared = 64});
  add({.tokens = 1, .shared = 64});
  add({.tokens = 9, .shared = 96, .weight = DType::kQ8_0, .down = DType::kQ5_0, .renormalize = false});
  add({.slots = 4, .experts = 4, .inner = 32, .weight = DType::kQ6_K, .down = DType::kMXFP4});
  add({.tokens = 70, .slots = 3, .experts = 12, .fused = true});
  add({.slots = 1, .experts = 1, .shared = 256, .shared_weight = DType::kQ5_K});
  add({.shared = 64, .router = DType::kBF16, .x = DType::kBF16, .y = DType::kBF16});
  add({.inner = 64, .down = DType::kQ4_1, .x = DType::kF16, .fused = true, .strided = true});
  add({.shared = 64, .size = 1e5});
  add({.weight = DType::kIQ4_XS, .down = DType::kQ3_K, .router = DType::kQ8_0});
  add({.shared = 32, .shared_weight = DType::kBF16, .strided = true});
  add({.tokens = 150,
       .slots = 4,
       .hidden = 288,
       .inner = 160,
       .shared = 96,
       .weight = DType::kQ8_0,
       .down = DType::kQ5_1});
  add({.hidden = 100,
       .inner = 37,
       .shared = 21,
       .weight = DType::kF32,
       .down = DType::kF32,
       .shared_weight = DType::kF32});
  add({.hidden = 64, .inner = 40, .weight = DType::kBF16, .down = DType::kF16, .x = DType::kBF16, .size = 1e5});
}

void add_widths_and_formats(std::vector<Case>& cases) {
  const auto add = adder(cases);
  // Rows of more columns than a warp takes at a time, more experts and slots than one round of its lanes.
  add({.tokens = 3,
       .slots = 3,
       .hidden = 2304,
       .inner = 96,
       .shared = 160,
       .weight = DType::kQ8_0,
       .down = DType::kQ4_0});
  add({.tokens = 2, .hidden = 4352, .shared = 64, .down = DType::kQ6_K, .shared_weight = DType::kQ4_0});
  add({.tokens = 2,
       .slots = 12,
       .experts = 300,
       .hidden = 64,
       .inner = 32,
       .shared = 32,
       .weight = DType::kQ5_1,
       .down = DType::kIQ4_NL});
  // Formats that no case above has.
  add({.hidden = 96,
       .inner = 64,
       .shared = 32,
       .weight = DType::kBF16,
       .down = DType::kF16,
       .shared_weight = DType::kF32,
       .x = DType::kF16});
  add({.shared = 256, .weight = DType::kQ5_K, .down = DType::kQ2_K, .shared_weight = DType::kIQ4_XS});
  add({.shared = 64, .weight = DType::kMXFP4, .down = DType::kQ3_K, .shared_weight = DType::kQ4_1});
  add({.inner = 96, .weight = DType::kIQ4_XS, .down = DType::kQ4_1});
  add({.tokens = 16, .slots = 8, .experts = 16, .shared = 256, .renormalize = false});
}

// Sizes that are multiples of 256: few and many tokens of an expert, formats mixed, inner sizes apart.
void add_multiples_of_256(std::vector<Case>& cases) {
  const auto add = adder(cases);
  add({.slots = 4,
       .experts = 12,
       .hidden = 512,
       .inner = 512,
       .shared = 512,
       .down = DType::kQ6_K,
       .shared_weight = DType::kQ6_K});
  add({.tokens = 33,
       .slots = 6,
       .experts = 20,
       .hidden = 512,
       .shared = 768,
       .weight = DType::kQ5_K,
       .down = DType::kQ8_0,
       .x = DType::kBF16,
       .y = DType::kBF16,
       .renormalize = false});
  add({.tokens = 100, .slots = 5, .experts = 300, .shared = 256, .weight = DType::kQ6_K, .down = DType::kQ5_K});
  add({.tokens = 2, .hidden = 2304, .inner = 768, .shared = 256, .weight = DType::kQ8_0, .down = DType::kQ6_K});
}

// Some of the router's experts: the first, the last, one alone, and more tokens than any of them has.
void add_ranges_of_experts(std::vector<Case>& cases) {
  const auto add = adder(cases);
  add({.tokens = 33, .slots = 3, .experts = 12, .shared = 64, .here = 5});
  add({.tokens = 33, .slots = 3, .experts = 12, .weight = DType::kQ8_0, .down = DType::kQ6_K, .here = 5, .first = 7});
  add({.tokens = 1, .slots = 4, .experts = 9, .shared = 32, .renormalize = false, .here = 1, .first = 4});
  add({.tokens = 70,
       .slots = 2,
       .experts = 16,
       .weight = DType::kBF16,
       .down = DType::kBF16,
       .fused = true,
       .here = 4,
       .first = 8});
}

// Sigmoids of the logits, biases on the scores, and both, on a rank of several too.
void add_scores(std::vector<Case>& cases) {
  const auto add = adder(cases);
  const RouterScore sigmoid = RouterScore::kSigmoid;
  add({.tokens = 1, .slots = 3, .experts = 12, .shared = 64, .score = sigmoid, .bias = true});
  add({.tokens = 9, .slots = 4, .experts = 20, .renormalize = false, .score = sigmoid});
  add({.tokens = 40, .slots = 3, .experts = 12, .weight = DType::kQ8_0, .down = DType::kQ6_K, .bias = true});
  add({.tokens = 33, .slots = 3, .experts = 12, .shared = 64, .here = 5, .first = 4, .score = sigmoid, .bias = true});
}

// So many tokens that kernels compute the logits in tiles.
void add_many_tokens(std::vector<Case>& cases) {
  const auto add = adder(cases);
  add({.tokens = 1030,
       .experts = 130,
       .hidden = 192,
       .inner = 32,
       .shared = 32,
       .weight = DType::kQ8_0,
       .down = DType::kQ8_0});
  add({.tokens = 1100,
       .slots = 3,
       .experts = 300,
       .hidden = 64,
       .inner = 32,
       .weight = DType::kBF16,
       .down = DType::kQ8_0,
       .router = DType::kF16,
       .x = DType::kBF16,
       .strided = true});
}

void add_benchmarks(std::vector<Case>& cases) {
  for (const std::int64_t tokens : {1, 64, 512}) {
    for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
      cases.push_back(for_bench(ffn_case({.tokens = tokens,
                                          .slots = 8,
                                          .experts = 64,
                                          .hidden = 2048,
                                          .inner = 512,
                                          .shared = 512,
                                          .shared_weight = DType::kQ4_K,
                                          .precision = precision,
                                          .large = true})));
    }
  }
}

}  // namespace

void add_moe_ffn_cases(std::vector<Case>& cases) {
  add_options(cases);
  add_widths_and_formats(cases);
  add_multiples_of_256(cases);
  add_ranges_of_experts(cases);
  add_scores(cases);
  add_many_tokens(cases);
  add_benchmarks(cases);
}

}  // namespace thalweg::cases
