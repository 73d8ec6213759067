#include "decode/draft_rounds.h"

#include <algorithm>

namespace thalweg::decode {
namespace {

// Recorded rounds that are kept.
constexpr std::size_t kMostGraphs = 64;

}  // namespace

DraftRounds::DraftRounds(Decoder& decoder, StatePool& pool, std::int64_t vocabulary)
    : decoder_(decoder),
      pool_(pool),
      runtime_(decoder.runtime()),
      vocabulary_(vocabulary),
      batch_(runtime_, decoder.round_tokens(), pool.slots()),
      memory_(runtime_),
      workspace_(runtime_),
      read_(runtime_, static_cast<std::size_t>(decoder.round_tokens()) * sizeof(std::int32_t)) {}

void DraftRounds::lay_out(Arena& arena) {
  const std::int64_t rows = most_tokens();
  const auto take = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
    Tensor tensor(nullptr, dtype, shape, runtime_.device());
    tensor.data = arena.take<std::byte>(bytes_of(dtype, tensor.size()));
    return tensor;
  };
  logits_ = take(DType::kF32, {rows, vocabulary_});
  for (Tensor* tensor : {&chosen_, &top_k_, &lengths_}) *tensor = take(DType::kI32, {rows});
  for (Tensor* tensor : {&temperature_, &top_p_, &min_p_}) *tensor = take(DType::kF32, {rows});
  seed_ = take(DType::kI32, {rows, 2});
}

std::size_t DraftRounds::plan() {
  Arena arena;
  lay_out(arena);
  return arena.used();
}

void DraftRounds::allocate() {
  Arena arena(memory_.reserve(plan()));
  lay_out(arena);
}

void DraftRounds::upload_settings(std::span<const RoundInput> inputs) {
  const auto upload = [&](const Tensor& to, auto value_of) {
    std::vector<decltype(value_of(inputs.front(), std::int32_t{}))> values;
    for (const RoundInput& input : inputs) {
      auto length = static_cast<std::int32_t>(pool_.length(input.slot));
      for (std::size_t i = 0; i < input.tokens.size(); ++i) values.push_back(value_of(input, ++length));
    }
    runtime_.upload(to.data, values.data(), values.size() * sizeof(values.front()));
  };
  upload(lengths_, [](const RoundInput&, std::int32_t length) { return length; });
  upload(temperature_, [](const RoundInput& input, std::int32_t) { return input.sampling.temperature; });
  upload(top_k_, [](const RoundInput& input, std::int32_t) { return input.sampling.top_k; });
  upload(top_p_, [](const RoundInput& input, std::int32_t) { return input.sampling.top_p; });
  upload(min_p_, [](const RoundInput& input, std::int32_t) { return input.sampling.min_p; });
  upload(seed_, [](const RoundInput& input, std::int32_t) { return input.sampling.seed; });
}

void DraftRounds::enqueue(const Kind& kind) {
  decoder_.enqueue_drafts(batch_, pool_, rows(logits_), kind.plain);
  SampleTokensArgs args;
  args.logits = rows(logits_);
  args.tokens = rows(chosen_);
  if (kind.draws) {
    args.lengths = rows(lengths_);
    args.temperature = rows(temperature_);
    args.top_k = rows(top_k_);
    args.top_p = rows(top_p_);
    args.min_p = rows(min_p_);
    args.seed = rows(seed_);
  }
  thalweg::run(args, workspace_.reserve(workspace_size(args, runtime_.stream())), runtime_.stream());
}

std::span<const std::int32_t> DraftRounds::run(std::span<const RoundInput> inputs) {
  Kind kind;
  kind.plain = true;
  std::int64_t longest = 0;
  std::vector<MtpLayer::Tokens> runs;
  batch_.clear();
  for (const RoundInput& input : inputs) {
    const std::int64_t pending = pool_.pending(input.slot);
    runs.push_back({input.slot, input.tokens, pool_.length(input.slot), batch_.count()});
    batch_.add(input.slot, pool_.length(input.slot), input.tokens, pending);
    kind.plain = kind.plain && pending == 0 && input.tokens.size() == 1;
    kind.draws = kind.draws || input.sampling.temperature != 0.0F;
    longest = std::max(longest, std::int64_t{batch_.lengths_on_host().back()});
  }
  kind.few = few_drafts(batch_);
  kind.tokens = batch_.count();
  kind.sequences = batch_.sequences();
  pool_.reserve(longest);
  decoder_.begin_round(runs, pool_);
  batch_.upload();
  if (kind.draws) upload_settings(inputs);

  const auto generation = [&] { return decoder_.generation() + workspace_.allocations(); };
  if (recorded_generation_ != generation() || graphs_.size() >= kMostGraphs) graphs_.clear();
  recorded_generation_ = generation();
  const auto found = graphs_.find(kind);
  // The first round of a kind runs as it is, which loads its kernels; the next one is recorded.
  if (found == graphs_.end()) {
    enqueue(kind);
    if (recorded_generation_ == generation()) graphs_[kind];
  } else {
    if (!found->second.defined()) found->second = Graph(runtime_, [&] { enqueue(kind); });
    found->second.launch();
  }
  const auto bytes = static_cast<std::size_t>(kind.tokens) * sizeof(std::int32_t);
  runtime_.download(read_.data(), chosen_.data, bytes);
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    pool_.set_length(inputs[n].slot, batch_.lengths_on_host()[n]);
    if (!kind.plain) pool_.set_pending(inputs[n].slot, static_cast<std::int64_t>(inputs[n].tokens.size()) - 1);
  }
  decoder_.end_round(batch_, runs, pool_);
  return {reinterpret_cast<const std::int32_t*>(read_.data()), static_cast<std::size_t>(kind.tokens)};
}

}  // namespace thalweg::decode
