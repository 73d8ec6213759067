// Cases of prefill and recurrence.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "cases/gated_delta.h"
#include "core/sequences.h"
#include "reference/gated_delta_rule.h"

namespace thalweg::cases {
Bound matrix_unit_bound(DType dtype) {
  const double l2 = dtype == DType::kF16 ? 6e-4 : 4.4e-3;
  return {l2, 8.0 * l2};
}

namespace {

using reference::Precision;

// The states of a case.
enum class States {
  kNone,   // neither initial nor final
  kFinal,  // zero initial state
  kBoth,
  kInPlace,
  kPool,  // a permuted pool with more slots than sequences; the second sequence has none
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
  bool bf16_operands = false;

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
    if (bf16_operands) text += "_bf16operands";
    return text;
  }
};

std::vector<std::int64_t> state_shape(StateLayout layout, std::int64_t slots, const RuleShape& shape) {
  if (layout == StateLayout::kKV) return {slots, shape.hv, shape.k, shape.v};
  return {slots, shape.hv, shape.v, shape.k};
}

// Largest sum of gates that the operation exponentiates: over a chunk of 64, or of one token in the recurrence.
double largest_exponent(const reference::Rule& rule, std::int64_t chunk_size) {
  double largest = 0.0;
  for (std::int64_t b = 0; b < rule.g.dim(0); ++b) {
    for (std::int64_t h = 0; h < rule.g.dim(2); ++h) {
      double sum = 0.0;
      for (std::int64_t t = 0; t < rule.g.dim(1); ++t) {
        // Chunks of packed sequences start anywhere: a sum over 64 tokens is at most that of two aligned chunks.
        if (t % chunk_size == 0) sum = 0.0;
        sum += rule.g(b, t, h);
        largest = std::max(largest, std::abs(sum));
      }
    }
  }
  return rule.bounds.empty() ? largest : 2.0 * largest;
}

// The bound of a whole operation in f32. Errors of the state are damped by the decay and by the keys' projections, and
// grow at most like a random walk over the tokens.
Bound rule_bound(const GatedDeltaRuleArgs& args, const reference::Rule& rule, std::int64_t chunk_size) {
  return f32_bound(static_cast<double>(args.k.dim(3) + args.k.dim(1)), largest_exponent(rule, chunk_size));
}

// q, k, v, gates and norms.
template <class Args>
void fill_inputs(Args& args, Memory& memory, Random& random, const RuleShape& shape, const Options& options) {
  const RuleInputs inputs = make_rule_inputs(shape, memory, random);
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
}

// States, snapshots, checkpoints and the output.
template <class Args>
void fill_states(Args& args, Memory& memory, Random& random, const RuleShape& shape, const Options& options) {
  const std::int64_t t = shape.total_tokens();
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
      const std::int64_t checkpoints = Sequences(args.cu_seqlens, shape.batch, t).chunks(options.checkpoint_tokens);
      std::vector<std::int64_t> sizes = state_shape(options.layout, checkpoints, shape);
      sizes.insert(sizes.begin(), shape.batch);
      args.checkpoints = memory.output(options.state_dtype, sizes);
    }
    args.bf16_operands = options.bf16_operands;
  }
}

template <class Args>
std::vector<Expected> expected_outputs(const Args& a) {
  Tensor snapshots;
  if constexpr (requires { a.snapshots; }) snapshots = a.snapshots;
  const reference::GatedDeltaResult exact = reference::gated_delta_rule(a, snapshots, Precision::kExact);
  const std::int64_t chunk = std::is_same_v<Args, ChunkGatedDeltaRuleArgs> ? 64 : 1;
  const Bound bound = rule_bound(a, reference::read_rule(a), chunk);
  std::vector<Expected> outputs;
  // Rounding happens only in stores.
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
  // Outputs stored as bf16 are rounded to bf16 whatever the operands are.
  for (Expected& output : outputs) {
    output.bound_16bit = matrix_unit_bound(output.actual.dtype == DType::kBF16 ? DType::kBF16 : a.q.dtype);
  }
  return outputs;
}

Cost rule_cost(const RuleShape& shape, const Options& options) {
  Cost cost;
  const auto tokens = static_cast<double>(shape.batch * shape.total_tokens());
  const auto width = static_cast<double>(dtype_info(shape.dtype).block_bytes);
  const auto per_state = static_cast<double>(shape.k * shape.v);
  const double state_bytes = static_cast<double>(shape.num_sequences() * shape.hv) * per_state * 8.0;
  cost.bytes = tokens * (width * static_cast<double>(2 * shape.hk * shape.k + 2 * shape.hv * shape.v) +
                         8.0 * static_cast<double>(shape.hv)) +
               (options.states == States::kNone ? 0.0 : state_bytes);
  // The sequential form: S k, the rank-1 update, S q. The chunk form spends about 1.6 times that.
  cost.flops = tokens * static_cast<double>(shape.hv) * 6.0 * per_state;
  return cost;
}

template <class Args>
void fill(OperationProblem<Args>& problem, Random& random, const RuleShape& shape, const Options& options) {
  fill_inputs(problem.args, problem.memory, random, shape, options);
  fill_states(problem.args, problem.memory, random, shape, options);
  problem.find_expected = expected_outputs<Args>;
  problem.cost = rule_cost(shape, options);
}

template <class Args>
Case rule_case(const RuleShape& shape, const Options& options = {}) {
  return make_case<Args>(
      shape.name() + options.name(),
      [shape, options](OperationProblem<Args>& problem, Random& random) { fill(problem, random, shape, options); });
}

// Checkpoints, and sequences long enough for a GPU to split.
void add_checkpoint_cases(std::vector<Case>& cases) {
  const RuleShape rows{.tokens = 260, .k = 64, .v = 64, .batch = 2, .dtype = DType::kBF16};
  RuleShape packed = rows;
  packed.batch = 1;
  packed.lengths = {129, 3, 0, 70, 128};
  for (const RuleShape& shape : {rows, packed}) {
    cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(shape, {.states = States::kNone, .checkpoint_tokens = 64}));
    cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(shape, {.states = States::kPool, .checkpoint_tokens = 128}));
    cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(
        shape, {.state_dtype = DType::kBF16, .layout = StateLayout::kKV, .checkpoint_tokens = 64}));
    RuleShape exact = shape;
    exact.dtype = DType::kF32;
    exact.k = 32;
    cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(exact, {.layout = StateLayout::kKV, .checkpoint_tokens = 128}));
  }
  // Long enough for a GPU to split sequences: heads that forget, heads that do not, and both alternating.
  const RuleShape longer{.tokens = 3300, .hk = 1, .hv = 2, .k = 128, .v = 128, .dtype = DType::kBF16};
  RuleShape several = longer;
  several.lengths = {6200, 130};
  several.k = several.v = 64;
  cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(longer));
  cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(several, {.states = States::kPool, .f32_output = true}));
  for (const Gates gates : {Gates::kNone, Gates::kMixed}) {
    RuleShape shape = longer;
    shape.hv = 1;
    shape.gates = gates;
    cases.push_back(
        rule_case<ChunkGatedDeltaRuleArgs>(shape, {.states = States::kInPlace, .layout = StateLayout::kKV}));
    cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(shape, {.checkpoint_tokens = 512}));
    RuleShape wide = several;
    wide.k = wide.v = 128;
    wide.hv = 1;
    wide.gates = gates;
    cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(wide, {.states = States::kPool}));
    shape.k = 256;
    shape.v = 64;
    cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(shape, {.states = States::kInPlace}));
  }
}

// The widths of the kernels on matrix units, over a few chunks.
void add_width_cases(std::vector<Case>& cases) {
  for (const std::int64_t k : {64, 128, 256}) {
    for (const std::int64_t v : {64, 128, 256}) {
      RuleShape shape{.tokens = 200, .hk = 1, .hv = 2, .k = k, .v = v, .dtype = DType::kBF16};
      cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(shape, {.raw_gates = true, .qk_norm = QkNorm::kL2}));
      shape.dtype = DType::kF16;
      shape.gates = Gates::kMixed;
      cases.push_back(
          rule_case<ChunkGatedDeltaRuleArgs>(shape, {.state_dtype = DType::kBF16, .layout = StateLayout::kKV}));
      RuleShape packed{.hk = 2,
                       .hv = 6,
                       .k = k,
                       .v = v,
                       .lengths = {65, 3, 0, 128},
                       .dtype = DType::kBF16,
                       .head_map = HeadMap::kTiled};
      cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(
          packed, {.states = States::kPool, .checkpoint_tokens = 64, .f32_output = true}));
      packed.gates = Gates::kStrong;
      packed.strided = true;
      cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(packed, {.states = States::kInPlace, .qk_norm = QkNorm::kL2}));
    }
  }
}

// Few tokens, and as many sequences and heads as fill a GPU.
void add_sequence_cases(std::vector<Case>& cases) {
  const RuleShape third{.tokens = 130, .k = 64, .v = 96, .dtype = DType::kBF16};
  cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(third, {.states = States::kInPlace}));
  const RuleShape few{.hk = 2, .hv = 4, .k = 128, .v = 128, .lengths = {70, 3, 0, 150}, .dtype = DType::kBF16};
  RuleShape many = few;
  many.hk = many.hv = 16;
  many.lengths = {130, 1, 0, 64, 65, 70, 20, 7};
  for (const RuleShape& shape : {few, many}) {
    cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(shape));
    cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(
        shape, {.states = States::kPool, .state_dtype = DType::kBF16, .layout = StateLayout::kKV, .raw_gates = true}));
    RuleShape narrow = shape;
    narrow.k = 64;
    narrow.dtype = DType::kF16;
    narrow.head_map = HeadMap::kTiled;
    cases.push_back(
        rule_case<ChunkGatedDeltaRuleArgs>(narrow, {.qk_norm = QkNorm::kL2, .scale = 0.25F, .f32_output = true}));
    RuleShape rounded = shape;
    rounded.dtype = DType::kF32;
    cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(
        rounded, {.states = States::kPool, .raw_gates = true, .qk_norm = QkNorm::kL2, .bf16_operands = true}));
  }
  // Of about one length and not, between which a GPU may choose.
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{200, 190}, {300, 70}, {0, 65}}) {
    RuleShape two = few;
    two.lengths = lengths;
    cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(two, {.states = States::kInPlace, .checkpoint_tokens = 64}));
    two.k = 64;
    two.dtype = DType::kF16;
    cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(two, {.states = States::kPool, .layout = StateLayout::kKV}));
  }
  // As many as a warp has lanes, which a GPU sorts, and one more.
  for (const std::size_t count : {32, 33}) {
    RuleShape sorted = few;
    sorted.lengths.clear();
    for (std::size_t i = 0; i < count; ++i) sorted.lengths.push_back(static_cast<std::int64_t>(i * 11 % 7 * 13));
    cases.push_back(rule_case<ChunkGatedDeltaRuleArgs>(sorted, {.states = States::kPool}));
  }
}

template <class Args>
void add_rule_cases(std::vector<Case>& cases) {
  for (const RuleShape& shape : rule_shapes()) cases.push_back(rule_case<Args>(shape));
  // Every K and every V at least once.
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
    add_checkpoint_cases(cases);
    add_width_cases(cases);
    add_sequence_cases(cases);
  }
  for (const std::int64_t tokens : {1, 16, 1024}) {
    const RuleShape shape{.tokens = tokens, .hk = 16, .hv = 32, .k = 128, .v = 128, .dtype = DType::kBF16};
    cases.push_back(for_bench(rule_case<Args>(shape, {.states = States::kInPlace})));
  }
}

// As a model on a CPU has them.
Case rounded_bench_case() {
  const RuleShape shape{.tokens = 1024, .hk = 16, .hv = 32, .k = 128, .v = 128};
  return for_bench(rule_case<ChunkGatedDeltaRuleArgs>(
      shape, {.states = States::kInPlace, .raw_gates = true, .qk_norm = QkNorm::kL2, .bf16_operands = true}));
}

}  // namespace

void add_gated_delta_rule_cases(std::vector<Case>& cases) {
  add_rule_cases<ChunkGatedDeltaRuleArgs>(cases);
  cases.push_back(rounded_bench_case());
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
}

}  // namespace thalweg::cases
