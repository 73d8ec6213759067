// Cases of the fused decode step.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "cases/gated_delta.h"
#include "reference/gated_delta_rule.h"

namespace thalweg::cases {
namespace {

using reference::Precision;

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
  std::vector<std::int64_t> lengths;  // packed sequences instead of batch and tokens
  std::int64_t replays = 0;           // R
  bool drafts = false;

  std::int64_t sequences() const { return lengths.empty() ? batch : static_cast<std::int64_t>(lengths.size()); }
  std::int64_t rows() const { return lengths.empty() ? batch : 1; }
  std::int64_t row_tokens() const {
    return lengths.empty() ? tokens : std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  }

  std::string name() const {
    std::string text = "B" + std::to_string(rows()) + "_T" + std::to_string(row_tokens()) + "_H" + std::to_string(hk) +
                       "_" + std::to_string(hv) + "_K" + std::to_string(k) + "_V" + std::to_string(v) + "_" +
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
    if (!lengths.empty()) text += "_packed" + std::to_string(sequences());
    if (replays > 0) text += "_replays" + std::to_string(replays);
    if (drafts) text += "_drafts";
    return text;
  }
};

std::int64_t channels_of(const StepShape& shape) { return 2 * shape.hk * shape.k + shape.hv * shape.v; }
std::int64_t slots_of(const StepShape& shape) { return shape.pool ? 2 * shape.sequences() + 1 : shape.sequences(); }

// x, the convolution, gates and norms of q and k.
void fill_inputs(GatedDeltaPrepStepArgs& args, Memory& memory, Random& random, const StepShape& shape) {
  const std::int64_t channels = channels_of(shape);
  const double root = std::sqrt(static_cast<double>(shape.k));
  // Without a norm in the operation, keys have norm about 0.5.
  const double spread = shape.qk_norm == QkNorm::kNone ? 0.5 / root : 1.0;
  const auto normal = [&] { return random.normal(); };
  std::int64_t channel = 0;
  args.x = memory.input(shape.dtype, {shape.rows(), shape.row_tokens(), channels}, [&] {
    const bool value = channel++ % channels >= 2 * shape.hk * shape.k;
    return (value ? 1.0 : spread) * random.normal();
  });
  const std::int64_t slots = slots_of(shape);
  if (shape.taps > 0) {
    args.conv_weight = memory.input(shape.dtype, {channels, shape.taps}, [&] { return 0.5 * random.normal(); });
    args.conv_state = memory.in_out(shape.dtype, {slots, channels, shape.taps - 1}, normal);
  }
  args.gates = make_gates(shape.rows(), shape.row_tokens(), shape.hv, shape.dtype, memory, random);
  args.qk_norm = shape.qk_norm;
  if (shape.qk_norm == QkNorm::kRms) {
    // As in published models, the scales are part of the weights: 1/K for q and K^-1/2 for k.
    args.scale = 1.0F;
    const auto around = [&](double base) { return [&random, base] { return base * random.uniform(0.7, 0.95); }; };
    args.q_norm_weight = memory.input(shape.dtype, {shape.hk, shape.k}, around(1.0 / static_cast<double>(shape.k)));
    args.k_norm_weight = memory.input(shape.dtype, {shape.hk, shape.k}, around(1.0 / root));
  }
}

// States, snapshots, the gated norm and the output.
void fill_states(GatedDeltaPrepStepArgs& args, Memory& memory, Random& random, const StepShape& shape) {
  const std::int64_t slots = slots_of(shape);
  const auto normal = [&] { return random.normal(); };
  const std::vector<std::int64_t> states = shape.layout == StateLayout::kVK
                                               ? std::vector{slots, shape.hv, shape.v, shape.k}
                                               : std::vector{slots, shape.hv, shape.k, shape.v};
  args.state_layout = shape.layout;
  if (shape.pool) args.state_indices = make_indices(shape.sequences(), memory);
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
    sizes[0] = shape.row_tokens();
    sizes.insert(sizes.begin(), shape.rows());
    args.snapshots = memory.output(DType::kF32, sizes);
  }
  const std::vector<std::int64_t> outputs = {shape.rows(), shape.row_tokens(), shape.hv, shape.v};
  if (shape.gated_norm) {
    args.z = memory.input(shape.dtype, outputs, normal);
    args.norm_weight = memory.input(DType::kF32, {shape.v}, [&] { return random.uniform(0.5, 1.5); });
  }
  args.y = memory.output(shape.dtype, outputs);
  args.head_map = shape.head_map;
}

// Packed sequences, and tokens to replay: none of the first sequence, one of the next, and so on.
void fill_drafts(GatedDeltaPrepStepArgs& args, Memory& memory, Random& random, const StepShape& shape) {
  args.drafts = shape.drafts;
  if (!shape.lengths.empty()) {
    std::size_t n = 0;
    std::int64_t bound = 0;
    args.cu_seqlens = memory.input(DType::kI32, {shape.sequences() + 1}, [&] {
      if (n++ > 0) bound += shape.lengths[n - 2];
      return static_cast<double>(bound);
    });
  }
  if (shape.replays == 0) return;
  const std::int64_t slots = slots_of(shape);
  const auto normal = [&] { return random.normal(); };
  args.replay_x = memory.in_out(shape.dtype, {slots, shape.replays, channels_of(shape)}, normal);
  args.replay_a = memory.in_out(shape.dtype, {slots, shape.replays, shape.hv}, normal);
  args.replay_b = memory.in_out(shape.dtype, {slots, shape.replays, shape.hv}, normal);
  std::int64_t n = 0;
  args.replay_counts =
      memory.input(DType::kI32, {shape.sequences()}, [&] { return static_cast<double>(n++ % (shape.replays + 1)); });
}

std::vector<Expected> expected_outputs(const GatedDeltaPrepStepArgs& a) {
  const reference::GatedDeltaResult exact = reference::gated_delta_prep_step(a, Precision::kExact);
  const reference::GatedDeltaResult rounded = reference::gated_delta_prep_step(a, Precision::kRounded);
  // Gates come from two exponentials each, hence the bound's term for gates.
  const Bound bound = f32_bound(static_cast<double>(a.state_in.dim(2) + a.state_in.dim(3)), 64.0);
  std::vector<Expected> list = {expect("y", a.y, exact.o, rounded.o, bound),
                                expect("state_out", a.state_out, exact.final_state, rounded.final_state, bound)};
  if (a.snapshots.defined()) {
    list.push_back(expect("snapshots", a.snapshots, exact.snapshots, rounded.snapshots, bound));
  }
  if (a.conv_state.defined()) {
    list.push_back(expect_equal("conv_state", a.conv_state, rounded.conv_state));
  }
  if (a.replay_x.defined()) {
    list.push_back(expect_equal("replay_x", a.replay_x, exact.replay_x));
    list.push_back(expect_equal("replay_a", a.replay_a, exact.replay_a));
    list.push_back(expect_equal("replay_b", a.replay_b, exact.replay_b));
  }
  return list;
}

Cost step_cost(const StepShape& shape) {
  const double state = static_cast<double>(shape.sequences() * shape.hv * shape.k * shape.v);
  const auto tokens = static_cast<double>(shape.row_tokens() * shape.rows()) /
                      static_cast<double>(std::max<std::int64_t>(1, shape.sequences()));
  return {state * 2.0 * dtype_info(shape.state_dtype).block_bytes +
              tokens * static_cast<double>(shape.sequences() * (channels_of(shape) + 2 * shape.hv * (shape.v + 1))) *
                  dtype_info(shape.dtype).block_bytes,
          tokens * state * 6.0};
}

Case step_case(const StepShape& shape) {
  return make_case<GatedDeltaPrepStepArgs>(
      shape.name(), [shape](OperationProblem<GatedDeltaPrepStepArgs>& problem, Random& random) {
        problem.memory.set_layout(shape.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
        fill_inputs(problem.args, problem.memory, random, shape);
        fill_states(problem.args, problem.memory, random, shape);
        fill_drafts(problem.args, problem.memory, random, shape);
        problem.find_expected = expected_outputs;
        problem.cost = step_cost(shape);
      });
}

void add_small_cases(std::vector<Case>& cases) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const DType state = dtype == DType::kF16 ? DType::kBF16 : dtype;  // states are not f16
    for (const HeadMap map : {HeadMap::kGrouped, HeadMap::kTiled}) {
      cases.push_back(step_case({.dtype = dtype, .state_dtype = state, .head_map = map}));
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
}

// A few tokens at the head sizes of the published models.
void add_few_token_cases(std::vector<Case>& cases) {
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
}

void add_large_cases(std::vector<Case>& cases) {
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
  // More tokens than a kernel stages at a time.
  for (const std::int64_t tokens : {9, 21}) {
    StepShape longer{.batch = 2, .tokens = tokens, .k = 32, .v = 96, .dtype = DType::kBF16, .taps = 4, .pool = true};
    longer.gated_norm = longer.in_place = true;
    cases.push_back(step_case(longer));
    longer.taps = 0;
    longer.gated_norm = longer.in_place = false;
    longer.snapshots = longer.strided = true;
    cases.push_back(step_case(longer));
  }
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

// Rounds with drafts: ragged, with and without replays, down to calls that only replay.
void add_draft_cases(std::vector<Case>& cases) {
  const std::vector<std::int64_t> ragged = {1, 4, 0, 3, 5, 2};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    StepShape shape{.dtype = dtype, .qk_norm = QkNorm::kL2, .taps = 4, .gated_norm = true, .pool = true};
    shape.lengths = ragged;
    cases.push_back(step_case(shape));
    shape.drafts = true;
    cases.push_back(step_case(shape));
    shape.replays = 4;
    shape.head_map = HeadMap::kTiled;
    cases.push_back(step_case(shape));
    shape.drafts = false;
    shape.strided = true;
    cases.push_back(step_case(shape));
  }
  StepShape shape{
      .batch = 3, .tokens = 4, .k = 32, .v = 96, .taps = 3, .gated_norm = true, .replays = 3, .drafts = true};
  cases.push_back(step_case(shape));
  shape.layout = StateLayout::kKV;
  cases.push_back(step_case(shape));
  shape.taps = 0;
  shape.in_place = true;
  cases.push_back(step_case(shape));
  shape.tokens = 0;
  cases.push_back(step_case(shape));
  shape.taps = 8;
  shape.layout = StateLayout::kVK;
  cases.push_back(step_case(shape));
  shape.replays = 0;
  shape.tokens = 1;
  cases.push_back(step_case(shape));
  cases.push_back(step_case({.snapshots = true, .pool = true, .lengths = {2, 1, 3}}));
  // More tokens than a kernel stages at a time, most of them drafts.
  shape = {
      .k = 64, .v = 96, .dtype = DType::kBF16, .qk_norm = QkNorm::kL2, .taps = 4, .gated_norm = true, .pool = true};
  shape.lengths = {1, 20, 3, 17};
  shape.replays = 20;
  shape.drafts = true;
  cases.push_back(step_case(shape));
  StepShape model{.hk = 16,
                  .hv = 32,
                  .k = 128,
                  .v = 128,
                  .qk_norm = QkNorm::kL2,
                  .taps = 4,
                  .gated_norm = true,
                  .in_place = true,
                  .lengths = {4},
                  .replays = 3,
                  .drafts = true};
  cases.push_back(for_bench(step_case(model)));
}

// At most seven tokens of a sequence, with those that it replays.
void add_few_draft_cases(std::vector<Case>& cases) {
  StepShape shape{.dtype = DType::kBF16,
                  .qk_norm = QkNorm::kL2,
                  .taps = 4,
                  .gated_norm = true,
                  .pool = true,
                  .lengths = {1, 4, 0, 3, 2, 4, 1},
                  .replays = 3,
                  .drafts = true};
  for (const std::int64_t size : {64, 128}) {
    shape.k = shape.v = size;
    cases.push_back(step_case(shape));
    StepShape other = shape;
    other.dtype = DType::kF32;
    other.qk_norm = QkNorm::kRms;
    other.taps = 3;
    other.strided = true;
    other.head_map = HeadMap::kTiled;
    cases.push_back(step_case(other));
    other.replays = 1;
    other.lengths = {2, 1, 0, 2};
    other.taps = 0;
    other.gated_norm = false;
    other.qk_norm = QkNorm::kNone;
    other.in_place = true;
    cases.push_back(step_case(other));
  }
  shape.lengths.clear();
  shape.batch = 5;
  for (const std::int64_t tokens : {0, 1, 3, 4}) {
    shape.tokens = tokens;
    cases.push_back(step_case(shape));
  }
}

}  // namespace

void add_gated_delta_prep_step_cases(std::vector<Case>& cases) {
  add_small_cases(cases);
  add_few_token_cases(cases);
  add_large_cases(cases);
  add_draft_cases(cases);
  add_few_draft_cases(cases);
}

}  // namespace thalweg::cases
