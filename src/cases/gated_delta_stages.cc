// Cases of the chunk form's stages. Their inputs come from the stage before them, computed by the float64 oracle.

#include <algorithm>
#include <cmath>

#include "cases/gated_delta.h"
#include "reference/gated_delta_rule.h"

namespace thalweg::cases {
namespace {

using reference::Precision;

// Makes a tensor of the problem from an array.
Tensor store(Memory& memory, DType dtype, const reference::Array& array) {
  std::size_t i = 0;
  return memory.input(dtype, array.shape(), [&] { return array.values[i++]; });
}

// The oracle's results of the stages up to the one that a case needs.
struct Chain {
  RuleInputs inputs;
  Tensor g_cumsum;
  Tensor a;
  Tensor a_inv;
  reference::WU w_u;
};

struct Stage {
  RuleShape shape;
  int chunk_size = 64;
  Rounding rounding = Rounding::kF32;

  std::string name() const {
    return shape.name() + "_C" + std::to_string(chunk_size) + (rounding == Rounding::kSeed ? "_seed" : "");
  }
};

enum class Upto { kCumsum, kKkt, kInverse, kWU };

Chain make_chain(const Stage& stage, Upto upto, Memory& memory, Random& random) {
  const RuleShape& shape = stage.shape;
  Chain chain;
  chain.inputs = make_rule_inputs(shape, memory, random);
  const RuleInputs& in = chain.inputs;
  chain.g_cumsum =
      store(memory, DType::kF32,
            reference::chunk_local_cumsum({.g = in.g, .cu_seqlens = in.cu_seqlens, .chunk_size = stage.chunk_size},
                                          Precision::kExact));
  if (upto == Upto::kCumsum) return chain;
  chain.a = store(memory, DType::kF32,
                  reference::chunk_scaled_dot_kkt({.k = in.k,
                                                   .beta = in.beta,
                                                   .g_cumsum = chain.g_cumsum,
                                                   .cu_seqlens = in.cu_seqlens,
                                                   .chunk_size = stage.chunk_size,
                                                   .head_map = shape.head_map},
                                                  Precision::kExact));
  if (upto == Upto::kKkt) return chain;
  chain.a_inv = store(
      memory, DType::kF32,
      reference::solve_tril({.a = chain.a, .cu_seqlens = in.cu_seqlens, .a_inv = {}, .chunk_size = stage.chunk_size},
                            Precision::kExact));
  if (upto == Upto::kInverse) return chain;
  chain.w_u = reference::recompute_w_u({.k = in.k,
                                        .v = in.v,
                                        .beta = in.beta,
                                        .g_cumsum = chain.g_cumsum,
                                        .a_inv = chain.a_inv,
                                        .cu_seqlens = in.cu_seqlens,
                                        .chunk_size = stage.chunk_size,
                                        .head_map = shape.head_map},
                                       Precision::kExact);
  return chain;
}

// Cost of all tokens, from that of one.
Cost chunk_cost(const Stage& stage, double bytes_per_token, double flops_per_token) {
  const auto tokens = static_cast<double>(stage.shape.batch * stage.shape.total_tokens());
  return {tokens * bytes_per_token, tokens * flops_per_token};
}

double width(const Stage& stage, std::int64_t heads, std::int64_t size) {
  return static_cast<double>(heads * size * dtype_info(stage.shape.dtype).block_bytes);
}

// Elements of a state per token of its chunk.
double per_chunk(const Stage& stage) {
  return static_cast<double>(stage.shape.k * stage.shape.v) / static_cast<double>(stage.chunk_size);
}

Case cumsum_case(const Stage& stage, bool in_place) {
  return make_case<ChunkLocalCumsumArgs>(
      stage.name() + (in_place ? "_in_place" : ""),
      [stage, in_place](OperationProblem<ChunkLocalCumsumArgs>& problem, Random& random) {
        const RuleInputs in = make_rule_inputs(stage.shape, problem.memory, random);
        const std::vector<std::int64_t> shape = {in.g.dim(0), in.g.dim(1), in.g.dim(2)};
        problem.args = {.g = in.g, .cu_seqlens = in.cu_seqlens, .chunk_size = stage.chunk_size};
        problem.args.g_cumsum = in_place ? problem.memory.also_output(in.g) : problem.memory.output(DType::kF32, shape);
        problem.find_expected = [](const ChunkLocalCumsumArgs& args) {
          const reference::Array exact = reference::chunk_local_cumsum(args, Precision::kExact);
          const reference::Array rounded = reference::chunk_local_cumsum(args, Precision::kRounded);
          return std::vector{expect("g_cumsum", args.g_cumsum, exact, rounded, f32_bound(args.chunk_size))};
        };
        problem.cost =
            chunk_cost(stage, 8.0 * static_cast<double>(stage.shape.hv), static_cast<double>(stage.shape.hv));
      });
}

Case l2norm_case(const Stage& stage, bool in_place) {
  return make_case<L2normArgs>(
      stage.shape.name() + (in_place ? "_in_place" : ""),
      [stage, in_place](OperationProblem<L2normArgs>& problem, Random& random) {
        const RuleShape& shape = stage.shape;
        problem.memory.set_layout(shape.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
        const std::vector<std::int64_t> sizes = {shape.batch, shape.total_tokens(), shape.hk, shape.k};
        problem.args.x = problem.memory.input(shape.dtype, sizes, [&] { return 3.0 * random.normal(); });
        problem.args.y =
            in_place ? problem.memory.also_output(problem.args.x) : problem.memory.output(shape.dtype, sizes);
        problem.find_expected = [](const L2normArgs& args) {
          const reference::Array exact = reference::l2norm(args, Precision::kExact);
          const reference::Array rounded = reference::l2norm(args, Precision::kRounded);
          return std::vector{expect("y", args.y, exact, rounded, f32_bound(static_cast<double>(args.x.dim(3))))};
        };
        problem.cost =
            chunk_cost(stage, 2.0 * width(stage, shape.hk, shape.k), 3.0 * static_cast<double>(shape.hk * shape.k));
      });
}

Case kkt_case(const Stage& stage) {
  return make_case<ChunkScaledDotKktArgs>(
      stage.name(), [stage](OperationProblem<ChunkScaledDotKktArgs>& problem, Random& random) {
        const RuleShape& shape = stage.shape;
        const Chain chain = make_chain(stage, Upto::kCumsum, problem.memory, random);
        problem.args = {
            .k = chain.inputs.k,
            .beta = chain.inputs.beta,
            .g_cumsum = chain.g_cumsum,
            .cu_seqlens = chain.inputs.cu_seqlens,
            .a = problem.memory.output(DType::kF32, {shape.batch, shape.total_tokens(), shape.hv, stage.chunk_size}),
            .chunk_size = stage.chunk_size,
            .head_map = shape.head_map,
            .rounding = stage.rounding};
        problem.find_expected = [](const ChunkScaledDotKktArgs& args) {
          const reference::Array exact = reference::chunk_scaled_dot_kkt(args, Precision::kExact);
          const reference::Array rounded = reference::chunk_scaled_dot_kkt(args, Precision::kRounded);
          return std::vector{expect("a", args.a, exact, rounded,
                                    f32_bound(static_cast<double>(args.k.dim(3)), largest_gate(args.g_cumsum)))};
        };
        const double row = 4.0 * static_cast<double>(stage.chunk_size);
        problem.cost = chunk_cost(stage, width(stage, shape.hk, shape.k) + static_cast<double>(shape.hv) * (8.0 + row),
                                  static_cast<double>(shape.hv * stage.chunk_size * shape.k));
      });
}

Case solve_case(const Stage& stage, DType out, bool in_place) {
  return make_case<SolveTrilArgs>(
      stage.name() + "_to" + std::string(dtype_name(out)) + (in_place ? "_in_place" : ""),
      [stage, out, in_place](OperationProblem<SolveTrilArgs>& problem, Random& random) {
        const RuleShape& shape = stage.shape;
        const Chain chain = make_chain(stage, Upto::kKkt, problem.memory, random);
        problem.args = {.a = chain.a, .cu_seqlens = chain.inputs.cu_seqlens, .chunk_size = stage.chunk_size};
        problem.args.a_inv =
            in_place ? problem.memory.also_output(chain.a)
                     : problem.memory.output(out, {shape.batch, shape.total_tokens(), shape.hv, stage.chunk_size});
        problem.find_expected = [](const SolveTrilArgs& args) {
          const reference::Array exact = reference::solve_tril(args, Precision::kExact);
          const reference::Array rounded = reference::solve_tril(args, Precision::kRounded);
          return std::vector{expect("a_inv", args.a_inv, exact, rounded, f32_bound(args.chunk_size))};
        };
        const auto c = static_cast<double>(stage.chunk_size);
        problem.cost =
            chunk_cost(stage, 8.0 * c * static_cast<double>(shape.hv), static_cast<double>(shape.hv) * c * c / 3.0);
      });
}

Case w_u_case(const Stage& stage) {
  return make_case<RecomputeWUArgs>(stage.name(), [stage](OperationProblem<RecomputeWUArgs>& problem, Random& random) {
    const RuleShape& shape = stage.shape;
    const Chain chain = make_chain(stage, Upto::kInverse, problem.memory, random);
    const std::int64_t t = shape.total_tokens();
    problem.args = {.k = chain.inputs.k,
                    .v = chain.inputs.v,
                    .beta = chain.inputs.beta,
                    .g_cumsum = chain.g_cumsum,
                    .a_inv = chain.a_inv,
                    .cu_seqlens = chain.inputs.cu_seqlens,
                    .w = problem.memory.output(shape.dtype, {shape.batch, t, shape.hv, shape.k}),
                    .u = problem.memory.output(shape.dtype, {shape.batch, t, shape.hv, shape.v}),
                    .chunk_size = stage.chunk_size,
                    .head_map = shape.head_map,
                    .rounding = stage.rounding};
    problem.find_expected = [](const RecomputeWUArgs& args) {
      const reference::WU exact = reference::recompute_w_u(args, Precision::kExact);
      const reference::WU rounded = reference::recompute_w_u(args, Precision::kRounded);
      const Bound bound = f32_bound(args.chunk_size, largest_gate(args.g_cumsum));
      return std::vector{expect("w", args.w, exact.w, rounded.w, bound),
                         expect("u", args.u, exact.u, rounded.u, bound)};
    };
    const auto c = static_cast<double>(stage.chunk_size);
    problem.cost = chunk_cost(stage,
                              width(stage, shape.hk, shape.k) + width(stage, shape.hv, shape.k) +
                                  2.0 * width(stage, shape.hv, shape.v) + static_cast<double>(shape.hv) * (8 + 4 * c),
                              c * static_cast<double>(shape.hv * (shape.k + shape.v)));
  });
}

struct StateOptions {
  bool initial = true;
  bool final = true;
  bool outputs = true;  // h and v_new
  DType dtype = DType::kF32;
  StateLayout layout = StateLayout::kVK;
  bool in_place = false;
  bool pool = false;  // more slots than sequences; the first sequence has none

  std::string name() const {
    std::string text;
    if (pool) text += "_pool";
    if (!initial) text += "_noh0";
    if (!final) text += "_nofinal";
    if (!outputs) text += "_stateonly";
    if (dtype == DType::kBF16) text += "_bf16state";
    if (layout == StateLayout::kKV) text += "_KV";
    if (in_place) text += "_in_place";
    return text;
  }
};

std::vector<std::int64_t> state_shape(const RuleShape& shape, StateLayout layout) {
  return layout == StateLayout::kVK ? std::vector{shape.num_sequences(), shape.hv, shape.v, shape.k}
                                    : std::vector{shape.num_sequences(), shape.hv, shape.k, shape.v};
}

Case state_case(const Stage& stage, const StateOptions& options) {
  return make_case<ChunkStateArgs>(
      stage.name() + options.name(), [stage, options](OperationProblem<ChunkStateArgs>& problem, Random& random) {
        const RuleShape& shape = stage.shape;
        Memory& memory = problem.memory;
        const Chain chain = make_chain(stage, Upto::kWU, memory, random);
        const std::int64_t t = shape.total_tokens();
        problem.args = {.k = chain.inputs.k,
                        .w = store(memory, shape.dtype, chain.w_u.w),
                        .u = store(memory, shape.dtype, chain.w_u.u),
                        .g_cumsum = chain.g_cumsum,
                        .cu_seqlens = chain.inputs.cu_seqlens,
                        .chunk_size = stage.chunk_size,
                        .head_map = shape.head_map,
                        .state_layout = options.layout,
                        .rounding = stage.rounding};
        const auto normal = [&] { return 0.5 * random.normal(); };
        std::vector<std::int64_t> sizes = state_shape(shape, options.layout);
        if (options.pool) {
          sizes[0] = shape.num_sequences() + 2;
          std::int64_t n = 0;
          problem.args.state_indices = memory.input(DType::kI32, {shape.num_sequences()}, [&] {
            const std::int64_t index = n++;
            return index == 0 ? -1.0 : static_cast<double>(sizes[0] - index);
          });
        }
        if (options.initial) problem.args.initial_state = memory.input(options.dtype, sizes, normal);
        if (options.final) {
          problem.args.final_state =
              options.in_place ? memory.also_output(problem.args.initial_state) : memory.output(options.dtype, sizes);
        }
        if (options.outputs) {
          std::int64_t chunks = 0;
          for (const std::int64_t length : shape.lengths) chunks += (length + stage.chunk_size - 1) / stage.chunk_size;
          if (shape.lengths.empty()) chunks = (t + stage.chunk_size - 1) / stage.chunk_size;
          problem.args.h = memory.output(shape.dtype, {shape.batch, chunks, shape.hv, shape.v, shape.k});
          problem.args.v_new = memory.output(shape.dtype, {shape.batch, t, shape.hv, shape.v});
        }
        problem.find_expected = [](const ChunkStateArgs& args) {
          const reference::ChunkStates exact = reference::chunk_state(args, Precision::kExact);
          const reference::ChunkStates rounded = reference::chunk_state(args, Precision::kRounded);
          const Bound bound =
              f32_bound(static_cast<double>(args.k.dim(3) + args.k.dim(1)), largest_gate(args.g_cumsum));
          std::vector<Expected> outputs;
          if (args.h.defined()) outputs.push_back(expect("h", args.h, exact.h, rounded.h, bound));
          if (args.v_new.defined()) outputs.push_back(expect("v_new", args.v_new, exact.v_new, rounded.v_new, bound));
          if (args.final_state.defined()) {
            outputs.push_back(expect("final_state", args.final_state, exact.final_state, rounded.final_state, bound));
          }
          return outputs;
        };
        const auto hv = static_cast<double>(shape.hv);
        const double element = dtype_info(shape.dtype).block_bytes;
        const double h = options.outputs ? hv * element * per_chunk(stage) : 0.0;
        const double fresh = options.outputs ? width(stage, shape.hv, shape.v) : 0.0;
        problem.cost = chunk_cost(
            stage, width(stage, shape.hk, shape.k) + width(stage, shape.hv, shape.k + shape.v) + fresh + h + 4.0 * hv,
            hv * 4.0 * static_cast<double>(shape.k * shape.v));
        const int states = (options.initial ? 1 : 0) + (options.final ? 1 : 0);
        problem.cost.bytes += static_cast<double>(states * shape.num_sequences() * shape.hv * shape.k * shape.v) *
                              dtype_info(options.dtype).block_bytes;
      });
}

Case output_case(const Stage& stage) {
  return make_case<ChunkOutputArgs>(stage.name(), [stage](OperationProblem<ChunkOutputArgs>& problem, Random& random) {
    const RuleShape& shape = stage.shape;
    Memory& memory = problem.memory;
    const Chain chain = make_chain(stage, Upto::kCumsum, memory, random);
    const std::int64_t t = shape.total_tokens();
    std::int64_t chunks = 0;
    for (const std::int64_t length : shape.lengths) chunks += (length + stage.chunk_size - 1) / stage.chunk_size;
    if (shape.lengths.empty()) chunks = (t + stage.chunk_size - 1) / stage.chunk_size;
    const auto normal = [&] { return random.normal(); };
    problem.args = {.q = chain.inputs.q,
                    .k = chain.inputs.k,
                    .v_new = chain.inputs.v,
                    .h = memory.input(shape.dtype, {shape.batch, chunks, shape.hv, shape.v, shape.k}, normal),
                    .g_cumsum = chain.g_cumsum,
                    .cu_seqlens = chain.inputs.cu_seqlens,
                    .o = memory.output(shape.dtype, {shape.batch, t, shape.hv, shape.v}),
                    .scale = std::nullopt,
                    .chunk_size = stage.chunk_size,
                    .head_map = shape.head_map,
                    .rounding = stage.rounding};
    problem.find_expected = [](const ChunkOutputArgs& args) {
      const reference::Array exact = reference::chunk_output(args, Precision::kExact);
      const reference::Array rounded = reference::chunk_output(args, Precision::kRounded);
      const auto reduction = static_cast<double>(args.k.dim(3) + args.chunk_size);
      return std::vector{expect("o", args.o, exact, rounded, f32_bound(reduction, largest_gate(args.g_cumsum)))};
    };
    const auto c = static_cast<double>(stage.chunk_size);
    const auto hv = static_cast<double>(shape.hv);
    const double h = hv * dtype_info(shape.dtype).block_bytes * per_chunk(stage);
    problem.cost =
        chunk_cost(stage, 2.0 * width(stage, shape.hk, shape.k) + 2.0 * width(stage, shape.hv, shape.v) + h + 4.0 * hv,
                   hv * (2.0 * static_cast<double>(shape.k * shape.v) + c * static_cast<double>(shape.k + shape.v)));
  });
}

// The sweep in f32 rounding at chunk length 64, other lengths on the edges, and Rounding::kSeed on bf16.
std::vector<Stage> stages() {
  std::vector<Stage> list;
  for (const RuleShape& shape : rule_shapes()) list.push_back({.shape = shape});
  for (const int c : {16, 32}) {
    list.push_back({.shape = {.tokens = 65, .k = 32, .v = 32}, .chunk_size = c});
    list.push_back({.shape = {.k = 32, .v = 32, .lengths = {3, 0, 33}, .gates = Gates::kMixed}, .chunk_size = c});
  }
  for (const int c : {16, 64}) {
    const auto seed = Rounding::kSeed;
    list.push_back({{.tokens = 70, .k = 128, .v = 128, .dtype = DType::kBF16}, c, seed});
    list.push_back({{.tokens = 70, .hv = 6, .k = 64, .dtype = DType::kBF16, .head_map = HeadMap::kTiled}, c, seed});
    list.push_back({{.k = 64, .lengths = {65, 0, 20}, .dtype = DType::kBF16, .gates = Gates::kMixed}, c, seed});
  }
  // The large head sizes, with a partial chunk.
  for (const std::int64_t k : {64, 128, 256}) {
    const DType dtype = k == 128 ? DType::kF16 : DType::kBF16;
    list.push_back({.shape = {.tokens = 70, .hk = 1, .hv = 2, .k = k, .v = 256, .dtype = dtype}});
    list.push_back({.shape = {.hk = 1, .hv = 2, .k = 256, .v = k, .lengths = {9, 65}, .head_map = HeadMap::kTiled}});
  }
  return list;
}

// The benchmark's shape, HK 16, HV 32, K = V = 128.
Stage bench_stage() {
  return {.shape = {.tokens = 1024, .hk = 16, .hv = 32, .k = 128, .v = 128, .dtype = DType::kBF16}};
}

}  // namespace

void add_gated_delta_stage_cases(std::vector<Case>& cases) {
  const auto add_all = [&cases](auto make) {
    for (const Stage& stage : stages()) cases.push_back(make(stage));
    cases.push_back(for_bench(make(bench_stage())));
  };
  const RuleShape middle{.tokens = 100, .k = 32, .v = 32};
  add_all([](const Stage& stage) { return cumsum_case(stage, false); });
  cases.push_back(cumsum_case({.shape = middle}, true));
  for (const RuleShape& shape : rule_shapes()) cases.push_back(l2norm_case({.shape = shape}, false));
  cases.push_back(for_bench(l2norm_case(bench_stage(), false)));
  cases.push_back(l2norm_case({.shape = middle}, true));
  cases.push_back(l2norm_case({.shape = {.tokens = 9, .k = 100}}, false));
  add_all(kkt_case);
  add_all([](const Stage& stage) { return solve_case(stage, DType::kF32, false); });
  cases.push_back(solve_case({.shape = middle}, DType::kF32, true));
  cases.push_back(solve_case({.shape = middle}, DType::kBF16, false));
  add_all(w_u_case);
  add_all([](const Stage& stage) { return state_case(stage, {}); });
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{}, {64, 0, 37}}) {
    const RuleShape shape{.tokens = 130, .k = 32, .v = 64, .lengths = lengths};
    cases.push_back(state_case({.shape = shape}, {.initial = false}));
    cases.push_back(state_case({.shape = shape}, {.final = false}));
    cases.push_back(state_case({.shape = shape}, {.outputs = false}));
    cases.push_back(state_case({.shape = shape}, {.dtype = DType::kBF16}));
    cases.push_back(state_case({.shape = shape}, {.layout = StateLayout::kKV}));
    cases.push_back(state_case({.shape = shape}, {.in_place = true}));
    cases.push_back(state_case({.shape = shape}, {.in_place = true, .pool = true}));
  }
  add_all(output_case);
}

}  // namespace thalweg::cases
