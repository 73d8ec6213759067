// Cases of the whole operations: prefill, recurrence, fused decode step.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "cases/gated_delta.h"
#include "core/sequences.h"
#include "reference/gated_delta_rule.h"

namespace thalweg::cases {
namespace {

using reference::Precision;

// How the states of a case are kept.
enum class States {
  kNone,   // neither initial nor final
  kFinal,  // zero initial state
  kBoth,
  kInPlace,
  kPool,  // more slots than sequences, in an order of their own; the second sequence has none
};

struct Options {
  States states = States::kBoth;
  DType state_dtype = DType::kF32;
  StateLayout layout = StateLayout::kVK;
  bool raw_gates = false;
  QkNorm qk_norm = QkNorm::kNone;
  std::optional<float> scale;
  bool snapshots = false;
  int checkpoint_tokens = 0;  // 0: no checkpoints
  bool f32_output = false;

  std::string name() const {
    constexpr const char* kStates[] = {"_stateless", "_final", "", "_in_place", "_pool"};
    std::string text = kStates[static_cast<int>(states)];
    if (state_dtype == DType::kBF16) text += "_bf16state";
    if (layout == StateLayout::kKV) text += "_KV";
    if (raw_gates) text += "_rawgates";
    if (qk_norm == QkNorm::kL2) text += "_l2norm";
    if (qk_norm == QkNorm::kRms) text += "_rmsnorm";
    if (scale) text += "_scale";
    if (snapshots) text += "_snapshots";
    if (checkpoint_tokens > 0) text += "_checkpoints" + std::to_string(checkpoint_tokens);
    if (f32_output) text += "_toF32";
    return text;
  }
};

std::vector<std::int64_t> state_shape(StateLayout layout, std::int64_t slots, const RuleShape& shape) {
  if (layout == StateLayout::kKV) return {slots, shape.hv, shape.k, shape.v};
  return {slots, shape.hv, shape.v, shape.k};
}

// Slots in reverse with gaps; sequence 1 has none.
Tensor make_indices(std::int64_t sequences, Memory& memory) {
  std::int64_t n = 0;
  return memory.input(DType::kI32, {sequences}, [&] {
    const std::int64_t index = n++;
    return index == 1 ? -1.0 : static_cast<double>(2 * (sequences - 1 - index) + 1);
  });
}

GateInputs make_gates(std::int64_t batch, std::int64_t tokens, std::int64_t hv, DType dtype, Memory& memory,
                      Random& random) {
  GateInputs gates;
  // a + dt_bias reaches past 20 now and then, where softplus changes its form.
  std::int64_t count = 0;
  gates.a =
      memory.input(dtype, {batch, tokens, hv}, [&] { return count++ % 7 == 3 ? 25.0 : 2.0 * random.normal() - 2.0; });
  gates.b = memory.input(dtype, {batch, tokens, hv}, [&] { return 2.0 * random.normal(); });
  gates.a_log = memory.input(DType::kF32, {hv}, [&] { return random.uniform(-3.0, 1.0); });
  gates.dt_bias = memory.input(dtype, {hv}, [&] { return random.normal(); });
  return gates;
}

// Largest sum of gates that the operation exponentiates, exact: over a chunk of 64, or of one token in the recurrence.
double largest_exponent(const reference::Rule& rule, std::int64_t chunk_size) {
  double largest = 0.0;
  for (std::int64_t b = 0; b < rule.g.dim(0); ++b) {
    for (std::int64_t h = 0; h < rule.g.dim(2); ++h) {
      double sum = 0.0;
      for (std::int64_t t = 0; t < rule.g.dim(1); ++t) {
        // Chunks of packed sequences start anywhere: no sum over 64 tokens exceeds that of the two around it.
        if (t % chunk_size == 0) sum = 0.0;
        sum += rule.g(b, t, h);
        largest = std::max(largest, std::abs(sum));
      }
    }
  }
  return rule.bounds.empty() ? largest : 2.0 * largest;
}

// For chunks on matrix units: a few operands rounded to 16 bits one after the other, each off by up to half a unit in
// the last place. FLA's kernels, which round at as many places, reach 4.4e-3 with bf16.
Bound matrix_unit_bound(DType dtype) {
  const double l2 = dtype == DType::kF16 ? 6e-4 : 4.4e-3;
  return {l2, 8.0 * l2};
}

// The bound of a whole operation in f32. Errors of the state are damped by the decay and by the keys' projections, and
// grow at most like a random walk over the tokens.
Bound rule_bound(const GatedDeltaRuleArgs& args, const reference::Rule& rule, std::int64_t chunk_size) {
  return f32_bound(static_cast<double>(args.k.dim(3) + args.k.dim(1)), largest_exponent(rule, chunk_size));
}

template <class Args>
void fill(OperationProblem<Args>& problem, Random& random, const RuleShape& shape, const Options& options) {
  Memory& memory = problem.memory;
  const RuleInputs inputs = make_rule_inputs(shape, memory, random);
  Args& args = problem.args;
  const std::int64_t t = shape.total_tokens();
  args.q = inputs.q;
  args.k = inputs.k;
  args.v = inputs.v;
  args.cu_seqlens = inputs.cu_seqlens;
  if (options.raw_gates) {
    args.gates = make_gates(shape.batch, t, shape.hv, shape.dtype, memory, random);
  } else {
    args.g = inputs.g;
    args.beta = inputs.beta;
  }
  args.head_map = shape.head_map;
  args.scale = options.scale;
  args.qk_norm = options.qk_norm;
  if (options.qk_norm == QkNorm::kRms) {
    // A weight around K^-1/2 leaves keys of norm about 1 at most.
    const double base = 1.0 / std::sqrt(static_cast<double>(shape.k));
    const auto weight = [&] { return base * random.uniform(0.6, 0.95); };
    args.q_norm_weight = memory.input(shape.dtype, {shape.hk, shape.k}, weight);
    args.k_norm_weight = memory.input(shape.dtype, {shape.hk, shape.k}, weight);
  }
  args.state_layout = options.layout;
  const std::int64_t sequences = shape.num_sequences();
  const bool pool = options.states == States::kPool;
  const std::vector<std::int64_t> states = state_shape(options.layout, pool ? 2 * sequences + 1 : sequences, shape);
  const auto normal = [&] { return 0.5 * random.normal(); };
  if (pool) args.state_indices = make_indices(sequences, memory);
  if (options.states == States::kBoth) args.initial_state = memory.input(options.state_dtype, states, normal);
  if (options.states == States::kBoth || options.states == States::kFinal) {
    args.final_state = memory.output(options.state_dtype, states);
  }
  if (options.states == States::kInPlace || pool) {
    const Tensor state = memory.in_out(options.state_dtype, states, normal);
    args.initial_state = state;
    args.final_state = state;
  }
  args.o = memory.output(options.f32_output ? DType::kF32 : shape.dtype, {shape.batch, t, shape.hv, shape.v});
  if constexpr (requires { args.snapshots; }) {
    if (options.snapshots) {
      std::vector<std::int64_t> sizes = state_shape(options.layout, t, shape);
      sizes.insert(sizes.begin(), shape.batch);
      args.snapshots = memory.output(options.state_dtype, sizes);
    }
  }
  if constexpr (requires { args.checkpoints; }) {
    if (options.checkpoint_tokens > 0) {
      args.checkpoint_tokens = options.checkpoint_tokens;
      const std::int64_t pieces = Sequences(args.cu_seqlens, shape.batch, t).chunks(options.checkpoint_tokens);
      std::vector<std::int64_t> sizes = state_shape(options.layout, pieces, shape);
      sizes.insert(sizes.begin(), shape.batch);
      args.checkpoints = memory.output(options.state_dtype, sizes);
    }
  }
  problem.find_expected = [](const Args& a) {
    Tensor snapshots;
    if constexpr (requires { a.snapshots; }) snapshots = a.snapshots;
    const reference::GatedDeltaResult exact = reference::gated_delta_rule(a, snapshots, Precision::kExact);
    const std::int64_t chunk = std::is_same_v<Args, ChunkGatedDeltaRuleArgs> ? 64 : 1;
    const Bound bound = rule_bound(a, reference::read_rule(a), chunk);
    std::vector<Expected> outputs;
    // Only what is stored is ever rounded.
    const auto add = [&](std::string name, const ConstTensor& actual, const reference::Array& values) {
      if (!actual.defined()) return;
      reference::Array rounded = values;
      round_all(rounded, actual.dtype, Precision::kRounded);
      outputs.push_back(expect(std::move(name), actual, values, rounded, bound));
    };
    add("o", a.o, exact.o);
    add("final_state", a.final_state, exact.final_state);
    add("snapshots", snapshots, exact.snapshots);
    if constexpr (requires { a.checkpoints; }) {
      if (a.checkpoints.defined()) {
        add("checkpoints", a.checkpoints,
            reference::checkpoints(a, a.checkpoints, a.checkpoint_tokens, Precision::kExact));
      }
    }
    // What is stored as bf16 is rounded to that, whatever the operands were.
    for (Expected& output : outputs) {
      output.bound_16bit = matrix_unit_bound(output.actual.dtype == DType::kBF16 ? DType::kBF16 : a.q.dtype);
    }
    return outputs;
  };
  const auto tokens = static_cast<double>(shape.batch * t);
  const auto width = static_cast<double>(dtype_info(shape.dtype).block_bytes);
  const auto per_state = static_cast<double>(shape.k * shape.v);
  const double state_bytes = static_cast<double>(sequences * shape.hv) * per_state * 8.0;
  problem.cost.bytes = tokens * (width * static_cast<double>(2 * shape.hk * shape.k + 2 * shape.hv * shape.v) +
                                 8.0 * static_cast<double>(shape.hv)) +
                       (options.states == States::kNone ? 0.0 : state_bytes);
  // The sequential form: S k, the rank-1 update, S q. The chunk form spends about 1.6 times that.
  problem.cost.flops = tokens * static_cast<double>(shape.hv) * 6.0 * per_state;
}

template <class Args>
Case rule_case(const RuleShape& shape, const Options& options = {}) {
  return make_case<Args>(
      shape.name() + options.name(),
      [shape, options](OperationProblem<Args>& problem, Random& random) { fill(problem, random, shape, options); });
}

template <class Args>
void add_rule_cases(std::vector<Case>& cases) {
  for (const RuleShape& shape : rule_shapes()) cases.push_back(rule_case<Args>(shape));
  // Every K with every V at least once.
  constexpr std::int64_t kSizes[] = {16, 32, 64, 96, 128, 192, 256};
  for (std::size_t i = 0; i < std::size(kSizes); ++i) {
    for (const std::size_t step : {0, 1, 3}) {
      const RuleShape shape{
          .tokens = 40, .hk = 1, .hv = 2, .k = kSizes[i], .v = kSizes[(i + step) % std::size(kSizes)]};
      cases.push_back(rule_case<Args>(shape));
    }
  }
  const RuleShape batch{.tokens = 70, .k = 32, .v = 64, .batch = 3};
  const RuleShape ragged{.k = 32, .v = 64, .lengths = {65, 3, 0, 20}, .head_map = HeadMap::kTiled};
  RuleShape half = ragged;
  half.dtype = DType::kBF16;
  for (const RuleShape& shape : {batch, ragged, half}) {
    for (const States states : {States::kNone, States::kFinal, States::kInPlace, States::kPool}) {
      cases.push_back(rule_case<Args>(shape, {.states = states}));
    }
    cases.push_back(rule_case<Args>(shape, {.state_dtype = DType::kBF16}));
    cases.push_back(rule_case<Args>(shape, {.layout = StateLayout::kKV}));
    cases.push_back(
        rule_case<Args>(shape, {.states = States::kPool, .state_dtype = DType::kBF16, .layout = StateLayout::kKV}));
    cases.push_back(rule_case<Args>(shape, {.raw_gates = true}));
    cases.push_back(rule_case<Args>(shape, {.qk_norm = QkNorm::kL2}));
    cases.push_back(rule_case<Args>(shape, {.raw_gates = true, .qk_norm = QkNorm::kRms, .scale = 1.0F}));
    cases.push_back(rule_case<Args>(shape, {.scale = 0.25F, .f32_output = true}));
  }
  if (std::is_same_v<Args, ChunkGatedDeltaRuleArgs>) {
    const RuleShape rows{.tokens = 260, .k = 64, .v = 64, .batch = 2, .dtype = DType::kBF16};
    RuleShape packed = rows;
    packed.batch = 1;
    packed.lengths = {129, 3, 0, 70, 128};
    for (const RuleShape& shape : {rows, packed}) {
      cases.push_back(rule_case<Args>(shape, {.states = States::kNone, .checkpoint_tokens = 64}));
      cases.push_back(rule_case<Args>(shape, {.states = States::kPool, .checkpoint_tokens = 128}));
      cases.push_back(
          rule_case<Args>(shape, {.state_dtype = DType::kBF16, .layout = StateLayout::kKV, .checkpoint_tokens = 64}));
      RuleShape exact = shape;
      exact.dtype = DType::kF32;
      exact.k = 32;
      cases.push_back(rule_case<Args>(exact, {.layout = StateLayout::kKV, .checkpoint_tokens = 128}));
    }
    // Long enough for a GPU to split sequences: heads that forget, heads that do not, and both by turns.
    const RuleShape longer{.tokens = 3300, .hk = 1, .hv = 2, .k = 128, .v = 128, .dtype = DType::kBF16};
    RuleShape several = longer;
    several.lengths = {6200, 130};
    several.k = several.v = 64;
    cases.push_back(rule_case<Args>(longer));
    cases.push_back(rule_case<Args>(several, {.states = States::kPool, .f32_output = true}));
    for (const Gates gates : {Gates::kNone, Gates::kMixed}) {
      RuleShape shape = longer;
      shape.hv = 1;
      shape.gates = gates;
      cases.push_back(rule_case<Args>(shape, {.states = States::kInPlace, .layout = StateLayout::kKV}));
      cases.push_back(rule_case<Args>(shape, {.checkpoint_tokens = 512}));
      shape.k = 256;
      shape.v = 64;
      cases.push_back(rule_case<Args>(shape, {.states = States::kInPlace}));
    }
    // The widths of the kernels on matrix units, over a few chunks.
    for (const std::int64_t k : {64, 128, 256}) {
      for (const std::int64_t v : {64, 128, 256}) {
        RuleShape shape{.tokens = 200, .hk = 1, .hv = 2, .k = k, .v = v, .dtype = DType::kBF16};
        cases.push_back(rule_case<Args>(shape, {.raw_gates = true, .qk_norm = QkNorm::kL2}));
        shape.dtype = DType::kF16;
        shape.gates = Gates::kMixed;
        cases.push_back(rule_case<Args>(shape, {.state_dtype = DType::kBF16, .layout = StateLayout::kKV}));
        RuleShape pieces{.hk = 2,
                         .hv = 6,
                         .k = k,
                         .v = v,
                         .lengths = {65, 3, 0, 128},
                         .dtype = DType::kBF16,
                         .head_map = HeadMap::kTiled};
        cases.push_back(
            rule_case<Args>(pieces, {.states = States::kPool, .checkpoint_tokens = 64, .f32_output = true}));
        pieces.gates = Gates::kStrong;
        pieces.strided = true;
        cases.push_back(rule_case<Args>(pieces, {.states = States::kInPlace, .qk_norm = QkNorm::kL2}));
      }
    }
    const RuleShape third{.tokens = 130, .k = 64, .v = 96, .dtype = DType::kBF16};
    cases.push_back(rule_case<Args>(third, {.states = States::kInPlace}));
    // Few tokens, and as many sequences and heads as fill a GPU: other kernels there.
    const RuleShape few{.hk = 2, .hv = 4, .k = 128, .v = 128, .lengths = {70, 3, 0, 150}, .dtype = DType::kBF16};
    RuleShape many = few;
    many.hk = many.hv = 16;
    many.lengths = {130, 1, 0, 64, 65, 70, 20, 7};
    for (const RuleShape& shape : {few, many}) {
      cases.push_back(rule_case<Args>(shape));
      cases.push_back(rule_case<Args>(
          shape,
          {.states = States::kPool, .state_dtype = DType::kBF16, .layout = StateLayout::kKV, .raw_gates = true}));
      RuleShape narrow = shape;
      narrow.k = 64;
      narrow.dtype = DType::kF16;
      narrow.head_map = HeadMap::kTiled;
      cases.push_back(rule_case<Args>(narrow, {.qk_norm = QkNorm::kL2, .scale = 0.25F, .f32_output = true}));
    }
  }
  for (const std::int64_t tokens : {1, 16, 1024}) {
    const RuleShape shape{.tokens = tokens, .hk = 16, .hv = 32, .k = 128, .v = 128, .dtype = DType::kBF16};
    cases.push_back(for_bench(rule_case<Args>(shape, {.states = States::kInPlace})));
  }
}

struct StepShape {
  std::int64_t batch = 2;
  std::int64_t tokens = 1;
  std::int64_t hk = 2;
  std::int64_t hv = 4;
  std::int64_t k = 64;
  std::int64_t v = 64;
  DType dtype = DType::kF32;
  DType state_dtype = DType::kF32;
  HeadMap head_map = HeadMap::kGrouped;
  QkNorm qk_norm = QkNorm::kRms;
  std::int64_t taps = 0;  // 0: no convolution
  bool gated_norm = false;
  bool snapshots = false;
  bool pool = false;
  bool in_place = false;
  bool strided = false;
  StateLayout layout = StateLayout::kVK;

  std::string name() const {
    std::string text = "B" + std::to_string(batch) + "_T" + std::to_string(tokens) + "_H" + std::to_string(hk) + "_" +
                       std::to_string(hv) + "_K" + std::to_string(k) + "_V" + std::to_string(v) + "_" +
                       std::string(dtype_name(dtype)) + "_state" + std::string(dtype_name(state_dtype));
    if (head_map == HeadMap::kTiled) text += "_tiled";
    if (qk_norm == QkNorm::kL2) text += "_l2norm";
    if (qk_norm == QkNorm::kNone) text += "_nonorm";
    if (taps > 0) text += "_conv" + std::to_string(taps);
    if (gated_norm) text += "_gatednorm";
    if (snapshots) text += "_snapshots";
    if (pool) text += "_pool";
    if (in_place) text += "_in_place";
    if (strided) text += "_strided";
    if (layout == StateLayout::kKV) text += "_KV";
    return text;
  }
};

Case step_case(const StepShape& shape) {
  return make_case<GatedDeltaPrepStepArgs>(shape.name(), [shape](OperationProblem<GatedDeltaPrepStepArgs>& problem,
                                                                 Random& random) {
    Memory& memory = problem.memory;
    memory.set_layout(shape.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
    GatedDeltaPrepStepArgs& args = problem.args;
    const std::int64_t channels = 2 * shape.hk * shape.k + shape.hv * shape.v;
    const double root = std::sqrt(static_cast<double>(shape.k));
    // Without a norm inside, keys come in with norm about 0.5.
    const double spread = shape.qk_norm == QkNorm::kNone ? 0.5 / root : 1.0;
    const auto normal = [&] { return random.normal(); };
    std::int64_t channel = 0;
    args.x = memory.input(shape.dtype, {shape.batch, shape.tokens, channels}, [&] {
      const bool value = channel++ % channels >= 2 * shape.hk * shape.k;
      return (value ? 1.0 : spread) * random.normal();
    });
    const std::int64_t slots = shape.pool ? 2 * shape.batch + 1 : shape.batch;
    if (shape.taps > 0) {
      args.conv_weight = memory.input(shape.dtype, {channels, shape.taps}, [&] { return 0.5 * random.normal(); });
      args.conv_state = memory.in_out(shape.dtype, {slots, channels, shape.taps - 1}, normal);
    }
    args.gates = make_gates(shape.batch, shape.tokens, shape.hv, shape.dtype, memory, random);
    args.qk_norm = shape.qk_norm;
    args.scale = static_cast<float>(1.0 / root);
    if (shape.qk_norm == QkNorm::kRms) {
      // As the seed's caller does: the scales are baked into the weights, 1/K for q and K^-1/2 for k.
      args.scale = 1.0F;
      const auto around = [&](double base) { return [&random, base] { return base * random.uniform(0.7, 0.95); }; };
      args.q_norm_weight = memory.input(shape.dtype, {shape.hk, shape.k}, around(1.0 / static_cast<double>(shape.k)));
      args.k_norm_weight = memory.input(shape.dtype, {shape.hk, shape.k}, around(1.0 / root));
    }
    const std::vector<std::int64_t> states = shape.layout == StateLayout::kVK
                                                 ? std::vector{slots, shape.hv, shape.v, shape.k}
                                                 : std::vector{slots, shape.hv, shape.k, shape.v};
    args.state_layout = shape.layout;
    if (shape.pool) args.state_indices = make_indices(shape.batch, memory);
    const auto small = [&] { return 0.5 * random.normal(); };
    if (shape.pool || shape.in_place) {
      args.state_out = memory.in_out(shape.state_dtype, states, small);
      args.state_in = args.state_out;
    } else {
      args.state_in = memory.input(shape.state_dtype, states, small);
      args.state_out = memory.output(shape.state_dtype, states);
    }
    if (shape.snapshots) {
      std::vector<std::int64_t> sizes = states;
      sizes[0] = shape.tokens;
      sizes.insert(sizes.begin(), shape.batch);
      args.snapshots = memory.output(DType::kF32, sizes);
    }
    const std::vector<std::int64_t> outputs = {shape.batch, shape.tokens, shape.hv, shape.v};
    if (shape.gated_norm) {
      args.z = memory.input(shape.dtype, outputs, normal);
      args.norm_weight = memory.input(DType::kF32, {shape.v}, [&] { return random.uniform(0.5, 1.5); });
    }
    args.y = memory.output(shape.dtype, outputs);
    args.head_map = shape.head_map;
    problem.find_expected = [](const GatedDeltaPrepStepArgs& a) {
      const reference::GatedDeltaResult exact = reference::gated_delta_prep_step(a, Precision::kExact);
      const reference::GatedDeltaResult rounded = reference::gated_delta_prep_step(a, Precision::kRounded);
      // Gates come from two exponentials each, hence their place in the bound.
      const Bound bound = f32_bound(static_cast<double>(a.state_in.dim(2) + a.state_in.dim(3)), 64.0);
      std::vector<Expected> list = {expect("y", a.y, exact.o, rounded.o, bound),
                                    expect("state_out", a.state_out, exact.final_state, rounded.final_state, bound)};
      if (a.snapshots.defined()) {
        list.push_back(expect("snapshots", a.snapshots, exact.snapshots, rounded.snapshots, bound));
      }
      if (a.conv_state.defined()) {
        list.push_back(expect_equal("conv_state", a.conv_state, rounded.conv_state));
      }
      return list;
    };
    const double state = static_cast<double>(shape.batch * shape.hv * shape.k * shape.v);
    const auto tokens = static_cast<double>(shape.tokens);
    problem.cost = {state * 2.0 * dtype_info(shape.state_dtype).block_bytes +
                        tokens * static_cast<double>(shape.batch * (channels + 2 * shape.hv * (shape.v + 1))) *
                            dtype_info(shape.dtype).block_bytes,
                    tokens * state * 6.0};
  });
}

void add_step_cases(std::vector<Case>& cases) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const HeadMap map : {HeadMap::kGrouped, HeadMap::kTiled}) {
      cases.push_back(step_case({.dtype = dtype, .state_dtype = dtype, .head_map = map}));
      cases.push_back(
          step_case({.dtype = dtype, .head_map = map, .qk_norm = QkNorm::kL2, .taps = 4, .gated_norm = true}));
    }
    cases.push_back(step_case({.tokens = 8, .dtype = dtype, .taps = 4, .gated_norm = true, .snapshots = true}));
    cases.push_back(step_case({.batch = 5, .dtype = dtype, .taps = 3, .pool = true}));
    cases.push_back(
        step_case({.batch = 3, .tokens = 3, .dtype = dtype, .taps = 4, .gated_norm = true, .strided = true}));
  }
  for (const std::int64_t size : {16, 32, 96, 128, 192, 256}) {
    cases.push_back(step_case({.k = size}));
    cases.push_back(step_case({.k = 128, .v = size, .dtype = DType::kBF16, .taps = 4}));
  }
  for (const std::int64_t ratio : {1, 2, 3, 4}) {
    for (const HeadMap map : {HeadMap::kGrouped, HeadMap::kTiled}) {
      cases.push_back(step_case({.batch = 1, .hk = 3, .hv = 3 * ratio, .k = 32, .v = 32, .head_map = map}));
    }
  }
  cases.push_back(step_case({.batch = 0}));
  cases.push_back(step_case({.tokens = 0, .taps = 4}));
  cases.push_back(step_case({.tokens = 2, .taps = 8}));
  cases.push_back(step_case({.qk_norm = QkNorm::kNone}));
  cases.push_back(step_case({.tokens = 2, .taps = 2, .in_place = true}));
  cases.push_back(step_case({.tokens = 4, .k = 32, .snapshots = true, .layout = StateLayout::kKV}));
  cases.push_back(step_case({.batch = 4, .tokens = 2, .k = 32, .pool = true, .layout = StateLayout::kKV}));
  cases.push_back(
      step_case({.batch = 16, .dtype = DType::kBF16, .state_dtype = DType::kBF16, .taps = 4, .in_place = true}));
  for (const std::int64_t tokens : {1, 2, 3, 8}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      StepShape shape{.batch = 3, .tokens = tokens, .k = 128, .v = 128, .dtype = dtype, .taps = 4, .gated_norm = true};
      cases.push_back(step_case(shape));
      shape.pool = true;
      shape.taps = 2;
      shape.state_dtype = dtype;
      shape.head_map = HeadMap::kTiled;
      shape.qk_norm = QkNorm::kL2;
      cases.push_back(step_case(shape));
      shape.k = 64;
      shape.v = 96;
      shape.hv = 6;
      shape.strided = true;
      cases.push_back(step_case(shape));
      shape.snapshots = true;
      shape.state_dtype = DType::kF32;
      cases.push_back(step_case(shape));
      shape.snapshots = false;
      shape.gated_norm = false;
      shape.taps = 0;
      shape.v = 16;
      cases.push_back(step_case(shape));
    }
  }
  // More key heads than a GPU has multiprocessors.
  StepShape many{
      .batch = 70, .k = 64, .v = 128, .dtype = DType::kBF16, .taps = 4, .gated_norm = true, .in_place = true};
  cases.push_back(step_case(many));
  many.state_dtype = DType::kBF16;
  many.tokens = 2;
  cases.push_back(step_case(many));
  many = {.batch = 70, .hv = 8, .k = 128, .v = 128, .head_map = HeadMap::kTiled, .taps = 3, .pool = true};
  cases.push_back(step_case(many));
  many.hv = 2;
  many.tokens = 3;
  many.qk_norm = QkNorm::kL2;
  many.taps = 0;
  many.snapshots = many.gated_norm = true;
  cases.push_back(step_case(many));
  const StepShape model{.batch = 1,
                        .hk = 16,
                        .hv = 32,
                        .k = 128,
                        .v = 128,
                        .dtype = DType::kBF16,
                        .qk_norm = QkNorm::kL2,
                        .taps = 4,
                        .gated_norm = true,
                        .in_place = true};
  cases.push_back(for_bench(step_case(model)));
  StepShape batch = model;
  batch.batch = 16;
  cases.push_back(for_bench(step_case(batch)));
}

}  // namespace

void add_gated_delta_rule_cases(std::vector<Case>& cases) {
  add_rule_cases<ChunkGatedDeltaRuleArgs>(cases);
  add_rule_cases<RecurrentGatedDeltaRuleArgs>(cases);
  const RuleShape decode{.tokens = 4, .k = 32, .v = 64, .batch = 3};
  const RuleShape ragged{.k = 32, .v = 64, .lengths = {4, 0, 1, 3}, .dtype = DType::kBF16};
  for (const RuleShape& shape : {decode, ragged}) {
    for (const StateLayout layout : {StateLayout::kVK, StateLayout::kKV}) {
      cases.push_back(rule_case<RecurrentGatedDeltaRuleArgs>(shape, {.layout = layout, .snapshots = true}));
      cases.push_back(rule_case<RecurrentGatedDeltaRuleArgs>(
          shape, {.states = States::kPool, .state_dtype = DType::kBF16, .layout = layout, .snapshots = true}));
    }
  }
  // A few tokens at the head sizes of the published models.
  for (const std::int64_t tokens : {1, 2, 3, 8}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      RuleShape shape{.tokens = tokens, .k = 128, .v = 128, .batch = 3, .dtype = dtype};
      cases.push_back(rule_case<RecurrentGatedDeltaRuleArgs>(shape, {.qk_norm = QkNorm::kL2}));
      shape.gates = Gates::kMixed;
      shape.head_map = HeadMap::kTiled;
      const Options pool{.states = States::kPool, .state_dtype = dtype, .raw_gates = true, .f32_output = true};
      cases.push_back(rule_case<RecurrentGatedDeltaRuleArgs>(shape, pool));
      shape.k = 64;
      shape.v = 32;
      shape.gates = Gates::kStrong;
      cases.push_back(rule_case<RecurrentGatedDeltaRuleArgs>(shape, {.states = States::kInPlace}));
      shape.v = 192;
      shape.strided = true;
      cases.push_back(rule_case<RecurrentGatedDeltaRuleArgs>(shape, {.raw_gates = true, .qk_norm = QkNorm::kRms}));
      cases.push_back(rule_case<RecurrentGatedDeltaRuleArgs>(shape, {.state_dtype = DType::kBF16, .snapshots = true}));
    }
  }
  add_step_cases(cases);
}

}  // namespace thalweg::cases
