// Cases of causal_conv1d and causal_conv1d_update.

#include <numeric>

#include "cases/nn.h"
#include "reference/nn.h"

namespace thalweg::cases {
namespace {

using reference::Precision;

enum class State { kNone, kInitial, kFinal, kBoth, kInPlace };

struct Conv {
  std::int64_t tokens = 20;
  std::int64_t channels = 48;
  std::int64_t taps = 4;
  std::int64_t batch = 1;
  std::vector<std::int64_t> lengths;  // packed ragged sequences instead of tokens and batch
  DType dtype = DType::kF32;
  DType weight_dtype = DType::kF32;
  DType state_dtype = DType::kF32;
  bool bias = false;
  Activation activation = Activation::kSilu;
  State state = State::kBoth;       // of causal_conv1d; the update's is always in place
  std::vector<std::int64_t> slots;  // state_indices into a pool of two more slots than sequences
  bool y_is_x = false;              // only for the update
  bool strided = false;
  double scale = 1.0;

  std::int64_t total_tokens() const {
    return lengths.empty() ? tokens : std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  }
  std::int64_t sequences() const { return lengths.empty() ? batch : static_cast<std::int64_t>(lengths.size()); }
  std::int64_t num_slots() const { return slots.empty() ? sequences() : sequences() + 2; }

  std::string name() const {
    std::string text = lengths.empty() ? "T" + std::to_string(tokens) : "ragged" + list_name(lengths);
    if (batch != 1) text += "_B" + std::to_string(batch);
    text += "_C" + std::to_string(channels) + "_W" + std::to_string(taps) + "_" + std::string(dtype_name(dtype));
    if (weight_dtype != DType::kF32) text += "_w" + std::string(dtype_name(weight_dtype));
    if (state_dtype != DType::kF32) text += "_s" + std::string(dtype_name(state_dtype));
    if (bias) text += "_bias";
    if (activation == Activation::kNone) text += "_linear";
    constexpr const char* kStateNames[] = {"_stateless", "_initial", "_final", "", "_in_place"};
    text += kStateNames[static_cast<int>(state)];
    if (!slots.empty()) text += "_slots" + list_name(slots);
    if (y_is_x) text += "_y_is_x";
    if (strided) text += "_strided";
    if (scale > 1.0) text += "_large";
    return text;
  }
};

double bytes(DType dtype, std::int64_t count) { return static_cast<double>(bytes_of(dtype, count)); }

Cost conv_cost(const Conv& conv, double state_passes) {
  const std::int64_t values = conv.batch * conv.total_tokens() * conv.channels;
  const std::int64_t state = conv.sequences() * conv.channels * (conv.taps - 1);
  return {2.0 * bytes(conv.dtype, values) +
              bytes(conv.weight_dtype, conv.channels * (conv.taps + (conv.bias ? 1 : 0))) +
              state_passes * bytes(conv.state_dtype, state),
          2.0 * static_cast<double>(values * conv.taps)};
}

// The arguments of both operations.
template <class Args>
void fill_inputs(OperationProblem<Args>& problem, const Conv& conv, Random& random) {
  Memory& memory = problem.memory;
  memory.set_layout(conv.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
  const auto normal = [&] { return random.normal(); };
  const std::vector<std::int64_t> sizes = {conv.batch, conv.total_tokens(), conv.channels};
  Args& args = problem.args;
  args.x = memory.input(conv.dtype, sizes, [&] { return conv.scale * random.normal(); });
  args.weight = memory.input(conv.weight_dtype, {conv.channels, conv.taps}, normal);
  if (conv.bias) args.bias = memory.input(conv.weight_dtype, {conv.channels}, normal);
  if (!conv.slots.empty()) args.state_indices = integers(memory, conv.slots);
  args.y = conv.y_is_x ? memory.also_output(args.x) : memory.output(conv.dtype, sizes);
  args.activation = conv.activation;
}

Case conv_case(const Conv& conv) {
  return make_case<CausalConv1dArgs>(conv.name(), [conv](OperationProblem<CausalConv1dArgs>& problem, Random& random) {
    fill_inputs(problem, conv, random);
    Memory& memory = problem.memory;
    CausalConv1dArgs& args = problem.args;
    if (!conv.lengths.empty()) args.cu_seqlens = cu_seqlens_of(memory, conv.lengths);
    const std::vector<std::int64_t> pool = {conv.num_slots(), conv.channels, conv.taps - 1};
    const auto state_value = [&] { return conv.scale * random.normal(); };
    if (conv.state == State::kInitial || conv.state == State::kBoth || conv.state == State::kInPlace) {
      args.initial_state = memory.input(conv.state_dtype, pool, state_value);
    }
    if (conv.state == State::kInPlace) args.final_state = memory.also_output(args.initial_state);
    if (conv.state == State::kFinal || conv.state == State::kBoth) {
      // With state_indices some slots must stay unchanged.
      args.final_state = conv.slots.empty() ? memory.output(conv.state_dtype, pool)
                                            : memory.in_out(conv.state_dtype, pool, state_value);
    }
    problem.find_expected = [](const CausalConv1dArgs& a) {
      const reference::ConvResult exact = reference::causal_conv1d(a, Precision::kExact);
      const reference::ConvResult rounded = reference::causal_conv1d(a, Precision::kRounded);
      std::vector<Expected> outputs = {
          expect("y", a.y, exact.y, rounded.y, f32_bound(static_cast<double>(a.weight.dim(1))))};
      if (a.final_state.defined()) outputs.push_back(expect_equal("final_state", a.final_state, rounded.state));
      return outputs;
    };
    problem.cost =
        conv_cost(conv, (args.initial_state.defined() ? 1.0 : 0.0) + (args.final_state.defined() ? 1.0 : 0.0));
  });
}

Case update_case(const Conv& conv) {
  return make_case<CausalConv1dUpdateArgs>(conv.name(), [conv](OperationProblem<CausalConv1dUpdateArgs>& problem,
                                                               Random& random) {
    fill_inputs(problem, conv, random);
    problem.args.conv_state = problem.memory.in_out(conv.state_dtype, {conv.num_slots(), conv.channels, conv.taps - 1},
                                                    [&] { return conv.scale * random.normal(); });
    problem.find_expected = [](const CausalConv1dUpdateArgs& a) {
      const reference::ConvResult exact = reference::causal_conv1d_update(a, Precision::kExact);
      const reference::ConvResult rounded = reference::causal_conv1d_update(a, Precision::kRounded);
      return std::vector{expect("y", a.y, exact.y, rounded.y, f32_bound(static_cast<double>(a.weight.dim(1)))),
                         expect_equal("conv_state", a.conv_state, rounded.state)};
    };
    problem.cost = conv_cost(conv, 2.0);
  });
}

std::vector<Conv> conv_shapes() {
  const DType f16 = DType::kF16;
  const DType bf16 = DType::kBF16;
  std::vector<Conv> list;
  for (const std::int64_t t : {0, 1, 2, 3, 5, 63, 64, 65, 127, 200}) list.push_back({.tokens = t});
  for (const std::int64_t w : {2, 3, 5, 8}) list.push_back({.tokens = 11, .channels = 19, .taps = w, .bias = true});
  list.push_back({.tokens = 6, .channels = 19, .taps = 8, .state = State::kInPlace});
  for (const std::int64_t c : {1, 513, 1200}) list.push_back({.tokens = 67, .channels = c, .state = State::kInPlace});
  for (const State state : {State::kNone, State::kInitial, State::kFinal, State::kInPlace}) {
    list.push_back({.tokens = 66, .batch = 2, .state = state});
    list.push_back({.lengths = {2, 0, 70}, .state = state});
  }
  list.push_back({.activation = Activation::kNone});
  list.push_back({.scale = 1e5});
  list.push_back({.dtype = bf16, .scale = 1e5});
  // Sequences that are empty, shorter than the window, longer than a task.
  const std::vector<std::int64_t> ragged = {0, 1, 2, 3, 0, 64, 65, 4, 130, 0};
  list.push_back({.lengths = ragged});
  list.push_back(
      {.lengths = ragged, .dtype = bf16, .weight_dtype = bf16, .state_dtype = bf16, .state = State::kInPlace});
  list.push_back({.lengths = {3, 64, 1}, .slots = {2, -1, 4}});
  list.push_back({.lengths = {3, 0, 1, 66}, .state = State::kInPlace, .slots = {5, 1, -1, 0}});
  list.push_back({.lengths = {2, 0, 9}, .state = State::kFinal, .slots = {1, 4, -1}});
  list.push_back({.lengths = {0, 0}});
  list.push_back({.tokens = 2, .batch = 3, .state = State::kInPlace, .slots = {-1, 3, 0}});
  for (const DType dtype : {f16, bf16}) {
    list.push_back({.tokens = 70, .dtype = dtype, .weight_dtype = dtype, .bias = true});
    list.push_back({.tokens = 70, .dtype = dtype, .state_dtype = dtype, .strided = true});
    list.push_back({.tokens = 9, .channels = 37, .state_dtype = dtype, .state = State::kInPlace});
  }
  list.push_back({.tokens = 70, .channels = 530, .batch = 2, .bias = true, .state = State::kInPlace, .strided = true});
  return list;
}

std::vector<Conv> update_shapes() {
  const DType f16 = DType::kF16;
  const DType bf16 = DType::kBF16;
  std::vector<Conv> list;
  for (const std::int64_t t : {0, 1, 2, 3, 4, 9}) list.push_back({.tokens = t});
  for (const std::int64_t w : {2, 3, 5, 8}) list.push_back({.tokens = 1, .channels = 19, .taps = w, .bias = true});
  for (const std::int64_t c : {1, 127, 129, 700}) list.push_back({.tokens = 1, .channels = c, .batch = 2});
  list.push_back({.tokens = 1, .batch = 0});
  list.push_back({.tokens = 1, .batch = 5, .y_is_x = true});
  list.push_back({.tokens = 3, .batch = 2, .dtype = bf16, .y_is_x = true});
  list.push_back({.tokens = 3, .batch = 2, .y_is_x = true, .strided = true});
  list.push_back({.tokens = 1, .batch = 4, .slots = {3, -1, 0, 5}});
  list.push_back({.tokens = 2, .batch = 2, .dtype = bf16, .state_dtype = bf16, .slots = {-1, -1}});
  list.push_back({.tokens = 5, .batch = 3, .slots = {4, 1, 2}, .y_is_x = true});
  list.push_back({.tokens = 1, .activation = Activation::kNone});
  list.push_back({.tokens = 1, .scale = 1e5});
  for (const DType dtype : {f16, bf16}) {
    list.push_back({.tokens = 1, .batch = 2, .dtype = dtype, .weight_dtype = dtype, .bias = true});
    list.push_back({.tokens = 2, .batch = 2, .dtype = dtype, .state_dtype = dtype, .strided = true});
    list.push_back({.tokens = 1, .channels = 37, .state_dtype = dtype});
  }
  return list;
}

}  // namespace

void add_conv_cases(std::vector<Case>& cases) {
  const DType bf16 = DType::kBF16;
  for (const Conv& conv : conv_shapes()) cases.push_back(conv_case(conv));
  // The convolution of a model of 35 billion weights: 2 * 16 key heads and 32 value heads of 128.
  cases.push_back(bench_case(conv_case({.tokens = 512, .channels = 8192, .dtype = bf16, .state = State::kInPlace})));
  for (const Conv& conv : update_shapes()) cases.push_back(update_case(conv));
  cases.push_back(bench_case(update_case({.tokens = 1, .channels = 8192, .dtype = bf16})));
  cases.push_back(bench_case(update_case({.tokens = 1, .channels = 8192, .batch = 32, .dtype = bf16})));
}

}  // namespace thalweg::cases
