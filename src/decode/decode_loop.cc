#include "decode/decode_loop.h"

#include <algorithm>

namespace thalweg::decode {

DecodeLoop::DecodeLoop(Decoder& decoder, StatePool& pool, std::int64_t vocabulary,
                       std::span<const std::int32_t> end_tokens)
    : decoder_(decoder),
      pool_(pool),
      runtime_(decoder.runtime()),
      vocabulary_(vocabulary),
      end_tokens_on_host_(end_tokens.begin(), end_tokens.end()),
      batch_(runtime_, pool.slots(), pool.slots()),
      memory_(runtime_),
      workspace_(runtime_),
      read_tokens_{PinnedMemory(runtime_, static_cast<std::size_t>(pool.slots()) * sizeof(std::int32_t)),
                   PinnedMemory(runtime_, static_cast<std::size_t>(pool.slots()) * sizeof(std::int32_t))},
      masks_(runtime_, static_cast<std::size_t>(pool.slots() * words()) * sizeof(std::uint32_t)),
      events_{Event(runtime_), Event(runtime_)} {}

void DecodeLoop::lay_out(Arena& arena) {
  const std::int64_t slots = pool_.slots();
  const auto take = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
    Tensor tensor(nullptr, dtype, shape, runtime_.device());
    tensor.data = arena.take<std::byte>(bytes_of(dtype, tensor.size()));
    return tensor;
  };
  for (Tensor& logits : logits_) logits = take(DType::kF32, {slots, vocabulary_});
  for (Tensor* tensor : {&tokens_, &top_k_, &repeat_last_}) *tensor = take(DType::kI32, {slots});
  for (Tensor* tensor : {&temperature_, &top_p_, &min_p_, &repeat_penalty_}) *tensor = take(DType::kF32, {slots});
  seed_ = take(DType::kI32, {slots, 2});
  allowed_ = take(DType::kI32, {slots, words()});
  end_tokens_ = take(DType::kI32, {static_cast<std::int64_t>(end_tokens_on_host_.size())});
  history_ = take(DType::kI32, {slots, pool_.context()});
}

std::size_t DecodeLoop::plan() {
  Arena arena;
  lay_out(arena);
  return arena.used();
}

void DecodeLoop::allocate() {
  Arena arena(memory_.reserve(plan()));
  lay_out(arena);
  runtime_.upload(end_tokens_.data, end_tokens_on_host_.data(), end_tokens_on_host_.size() * sizeof(std::int32_t));
}

void DecodeLoop::upload_settings(std::span<const LoopInput> inputs) {
  const auto upload = [&](const Tensor& to, auto value_of) {
    std::vector<decltype(value_of(inputs.front()))> values;
    for (const LoopInput& input : inputs) values.push_back(value_of(input));
    runtime_.upload(to.data, values.data(), values.size() * sizeof(values.front()));
  };
  settings_ = {};
  for (const LoopInput& input : inputs) {
    settings_.draws |= input.sampling.temperature != 0.0F;
    settings_.penalizes |= input.sampling.repeat_penalty != 1.0F;
  }
  if (settings_.draws) {
    upload(temperature_, [](const LoopInput& input) { return input.sampling.temperature; });
    upload(top_k_, [](const LoopInput& input) { return input.sampling.top_k; });
    upload(top_p_, [](const LoopInput& input) { return input.sampling.top_p; });
    upload(min_p_, [](const LoopInput& input) { return input.sampling.min_p; });
    upload(seed_, [](const LoopInput& input) { return input.sampling.seed; });
  }
  if (settings_.penalizes) {
    upload(repeat_penalty_, [](const LoopInput& input) { return input.sampling.repeat_penalty; });
    upload(repeat_last_, [](const LoopInput& input) { return input.sampling.repeat_last; });
    for (const LoopInput& input : inputs) {
      std::vector<std::int32_t> tokens(input.tokens.begin(), input.tokens.end());
      tokens.push_back(input.next);
      runtime_.upload(history_.row(input.slot), tokens.data(), tokens.size() * sizeof(std::int32_t));
    }
  }
}

void DecodeLoop::start(std::span<const LoopInput> inputs, bool ignore_end, bool constrained) {
  RankGroup* const group = decoder_.group();
  if (group == nullptr || !group->leads()) return start_here(inputs, ignore_end, constrained);
  std::vector<RankedStart> starts;
  for (const LoopInput& input : inputs) {
    starts.push_back({input.slot, pool_.length(input.slot), input.next, input.sampling, {}});
    if (input.sampling.repeat_penalty != 1.0F) starts.back().tokens.assign(input.tokens.begin(), input.tokens.end());
  }
  group->start_loop(starts, ignore_end, [&] { start_here(inputs, ignore_end, false); });
}

void DecodeLoop::start_here(std::span<const LoopInput> inputs, bool ignore_end, bool constrained) {
  while (read_ < launched_) read();
  batch_.clear();
  for (const LoopInput& input : inputs) batch_.add(input.slot, pool_.length(input.slot), std::span(&input.next, 1));
  batch_.upload();
  upload_settings(inputs);
  settings_.ends = !ignore_end && end_tokens_.size() > 0;
  settings_.constrains = constrained;
  is_open_.assign(inputs.size(), 0);
}

bool DecodeLoop::keep_graphs() {
  const bool valid = recorded_generation_ == generation();
  recorded_generation_ = generation();
  const bool all_valid = decoder_.group() == nullptr ? valid : decoder_.group()->all_agree(valid);
  if (!all_valid) graphs_.clear();
  return all_valid;
}

SampleTokensArgs DecodeLoop::sample_args(std::size_t parity) const {
  SampleTokensArgs args;
  args.logits = rows(logits_[parity]);
  args.slots = batch_.slots();
  args.tokens = rows(tokens_);
  if (settings_.draws || settings_.penalizes) args.lengths = batch_.lengths();
  if (settings_.draws) {
    args.temperature = rows(temperature_);
    args.top_k = rows(top_k_);
    args.top_p = rows(top_p_);
    args.min_p = rows(min_p_);
    args.seed = rows(seed_);
  }
  if (settings_.penalizes) {
    args.history = history_;
    args.repeat_penalty = rows(repeat_penalty_);
    args.repeat_last = rows(repeat_last_);
  }
  if (settings_.constrains) args.allowed = rows(allowed_);
  return args;
}

void DecodeLoop::enqueue(Work work, std::size_t parity) {
  if (work != Work::kChoice) decoder_.enqueue_step(batch_, pool_, rows(logits_[parity]));
  if (work != Work::kLayers) enqueue_choice(parity);
}

void DecodeLoop::enqueue_choice(std::size_t parity) {
  const auto run = [&](const auto& args) {
    thalweg::run(args, workspace_.reserve(workspace_size(args, runtime_.stream())), runtime_.stream());
  };
  run(sample_args(parity));
  AdvanceArgs advance;
  advance.tokens = rows(tokens_);
  if (settings_.ends) advance.end_tokens = end_tokens_;
  advance.ids = batch_.tokens();
  advance.positions = batch_.positions();
  advance.lengths = batch_.lengths();
  advance.slots = batch_.slots();
  if (settings_.penalizes) advance.history = history_;
  run(advance);
}

void DecodeLoop::launch() {
  RankGroup* const group = decoder_.group();
  if (group == nullptr || !group->leads()) return launch_here();
  group->launch_loop([this] { launch_here(); });
}

void DecodeLoop::launch_here() {
  // Ranks have had the same runs, after which each may find that memory has moved.
  if (decoder_.group() == nullptr || checked_runs_ != decoder_.runs()) keep_graphs();
  checked_runs_ = decoder_.runs();
  const std::size_t parity = launched_ % kSteps;
  launch(settings_.constrains ? Work::kLayers : Work::kBoth, parity);
  if (!settings_.constrains) enqueue_read(parity);
  ++launched_;
}

void DecodeLoop::launch(Work work, std::size_t parity) {
  Graph& graph = graphs_[{count(), settings_, parity, work}];
  if (graph.defined()) return graph.launch();
  // The first step of a kind runs as it is: it loads kernels, which is not allowed while a graph is recorded.
  enqueue(work, parity);
  if (!runtime_.on_host() && keep_graphs()) graph = Graph(runtime_, [&] { enqueue(work, parity); });
}

void DecodeLoop::choose(const std::function<TokenMask(std::size_t input)>& mask) {
  for (std::size_t input = 0; input < is_open_.size(); ++input) upload_mask(input, mask(input));
  const std::size_t parity = (launched_ - 1) % kSteps;
  launch(Work::kChoice, parity);
  enqueue_read(parity);
}

void DecodeLoop::upload_mask(std::size_t input, TokenMask mask) {
  if (mask.empty() && is_open_[input] != 0) return;
  is_open_[input] = mask.empty() ? 1 : 0;
  const auto row_words = static_cast<std::size_t>(words());
  auto* const row = reinterpret_cast<std::uint32_t*>(masks_.data()) + input * row_words;
  if (mask.empty()) {
    std::fill_n(row, row_words, ~0U);
  } else {
    std::copy_n(mask.begin(), row_words, row);
  }
  runtime_.copy(allowed_.row(static_cast<std::int64_t>(input)), row, row_words * sizeof(std::uint32_t));
}

void DecodeLoop::enqueue_read(std::size_t parity) {
  runtime_.copy(read_tokens_[parity].data(), tokens_.data, static_cast<std::size_t>(count()) * sizeof(std::int32_t));
  events_[parity].record();
}

std::span<const std::int32_t> DecodeLoop::read() {
  const std::size_t parity = read_++ % kSteps;
  events_[parity].wait();
  return {reinterpret_cast<const std::int32_t*>(read_tokens_[parity].data()), static_cast<std::size_t>(count())};
}

const void* DecodeLoop::logits(std::size_t input) const {
  return logits_[(read_ + kSteps - 1) % kSteps].row(static_cast<std::int64_t>(input));
}

void DecodeLoop::read_logits(std::size_t input, std::vector<float>& to) const {
  to.resize(static_cast<std::size_t>(vocabulary_));
  runtime_.download(to.data(), logits(input), to.size() * sizeof(float));
}

}  // namespace thalweg::decode
