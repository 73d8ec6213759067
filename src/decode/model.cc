#include "thalweg/model.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>

#include "core/threads.h"
#include "decode/logprobs.h"
#include "decode/model_impl.h"
#include "decode/sampler.h"
#include "decode/session.h"
#include "io/printable.h"
#include "thalweg/error.h"

namespace thalweg {
namespace {

DType kv_dtype(const ModelOptions& options) {
  return options.kv_dtype.value_or(options.exact ? DType::kF32 : DType::kF16);
}

void check_options(const ModelOptions& options) {
  const auto require = [](bool condition, std::string_view what, std::string_view expected, const std::string& given) {
    if (!condition) throw Error("ModelOptions", what, expected, given);
  };
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  require(options.threads >= 0, "threads", "0 or more", std::to_string(options.threads));
  require(options.context >= 0 && options.context <= kMost, "context", "a number from 0 to " + std::to_string(kMost),
          std::to_string(options.context));
  require(options.sequences >= 1, "sequences", "1 or more", std::to_string(options.sequences));
  require(options.prefill_chunk >= 0 && options.prefill_chunk <= 65536, "prefill_chunk", "a number from 0 to 65536",
          std::to_string(options.prefill_chunk));
  require(options.draft_max >= 1 && options.draft_max <= 64, "draft_max", "a number from 1 to 64",
          std::to_string(options.draft_max));
  const DType kv = kv_dtype(options);
  require(is_float(kv) || kv == DType::kQ8_0, "kv_dtype", "F16, BF16, F32 or Q8_0", std::string(dtype_name(kv)));
  require(options.state_dtype == DType::kF32 || options.state_dtype == DType::kBF16, "state_dtype", "F32 or BF16",
          std::string(dtype_name(options.state_dtype)));
}

void open_gguf(Model::Impl& impl, const std::string& path) {
  impl.gguf = std::make_unique<io::GgufFile>(path);
  impl.config = checkpoint::read_config(impl.gguf->metadata(), *impl.gguf, path);
  impl.tokenizer = checkpoint::read_tokenizer(impl.gguf->metadata(), path);
  impl.chat_template = impl.gguf->metadata().string("tokenizer.chat_template", "");
}

void open_hugging_face(Model::Impl& impl, const std::string& path) {
  const std::filesystem::path folder(path);
  const io::JsonObject config = io::JsonObject::read((folder / "config.json").string());
  impl.safetensors = std::make_unique<io::SafetensorsFile>(path);
  impl.config = checkpoint::read_config(config, *impl.safetensors);
  impl.tokenizer = checkpoint::read_tokenizer(path);
  impl.chat_template = checkpoint::read_chat_template(path);
  const std::string generation = (folder / "generation_config.json").string();
  if (std::filesystem::exists(generation)) {
    checkpoint::read_end_tokens(impl.config, io::JsonObject::read(generation),
                                "eos_token_id of generation_config.json");
  }
}

Sequence::Impl& present(const std::unique_ptr<Sequence::Impl>& impl) {
  if (impl == nullptr) throw Error("sequence", "model", "a sequence that Model::start() gave", "an empty one");
  return *impl;
}

Sequence::Impl& used(const std::unique_ptr<Sequence::Impl>& impl) {
  if (present(impl).damaged) {
    throw Error("sequence", "state", "one whose last run of tokens was completed",
                "one that an error interrupted: clear() or restore() it");
  }
  return *impl;
}

// A copy of the recurrent states, restored when a run is stopped. Keys and values need no copy: new ones are appended.
class Snapshot {
 public:
  Snapshot(decode::StatePool& pool, std::span<const decode::DecoderInput> inputs) : pool_(pool) {
    for (const decode::DecoderInput& input : inputs) {
      states_.push_back({input.slot, pool.length(input.slot), !pool.mtp_rows(input.slot).lost, {}});
      std::vector<std::byte>& bytes = states_.back().bytes;
      pool.read(input.slot, 0,
                [&](std::span<const std::byte> segment) { bytes.insert(bytes.end(), segment.begin(), segment.end()); });
    }
  }

  void restore() {
    for (const State& state : states_) {
      std::span<const std::byte> rest = state.bytes;
      const auto give = [&](std::size_t bytes) {
        const std::span<const std::byte> segment = rest.first(bytes);
        rest = rest.subspan(bytes);
        return segment;
      };
      pool_.write(state.slot, 0, give, state.mtp);
      pool_.set_length(state.slot, state.length);
    }
  }

 private:
  struct State {
    int slot;
    std::int64_t length;
    bool mtp;
    std::vector<std::byte> bytes;
  };

  decode::StatePool& pool_;
  std::vector<State> states_;
};

}  // namespace

std::uint64_t Model::Impl::fingerprint() {
  if (!fingerprint_) {
    std::uint64_t value = decode::fingerprint(config, weights, source());
    // Every number of ranks has states of its own form.
    if (shard != nullptr) value += static_cast<std::uint64_t>(group->count()) * 0x9E3779B97F4A7C15U;
    source().require_intact();
    fingerprint_ = value;
  }
  return *fingerprint_;
}

std::vector<Sequence::Impl*> Model::Impl::sequences_of(std::span<Sequence* const> batch, std::string_view operation) {
  std::vector<Sequence::Impl*> states;
  for (Sequence* handle : batch) {
    if (handle == nullptr) throw Error(operation, "sequence", "a sequence", "none");
    Sequence::Impl& state = used(handle->impl_);
    if (state.model.get() != this) throw Error(operation, "sequence", "one of this model", "one of another");
    if (std::find(states.begin(), states.end(), &state) != states.end()) {
      throw Error(operation, "sequence", "each sequence once", "one twice");
    }
    states.push_back(&state);
  }
  return states;
}

std::vector<decode::DecoderInput> Model::Impl::inputs_of(std::span<const SequenceInput> batch,
                                                         std::span<Sequence::Impl* const> sequences) const {
  std::vector<decode::DecoderInput> inputs;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    for (std::int32_t token : batch[i].tokens) {
      if (token >= 0 && token < config.vocabulary) continue;
      throw Error("prefill", "tokens", "ids from 0 to " + std::to_string(config.vocabulary - 1), std::to_string(token));
    }
    const std::size_t length = sequences[i]->tokens.size() + batch[i].tokens.size();
    if (length > static_cast<std::size_t>(context)) {
      throw Error("prefill", "tokens", "at most " + std::to_string(context) + " in a sequence (ModelOptions::context)",
                  std::to_string(length));
    }
    inputs.push_back({sequences[i]->slot, batch[i].tokens});
  }
  return inputs;
}

bool Model::Impl::run(std::span<const SequenceInput> batch, decode::LogitsOf which,
                      const decode::LogitsCallback& on_logits, const ShouldContinue& should_continue) {
  std::vector<Sequence*> handles;
  for (const SequenceInput& input : batch) handles.push_back(input.sequence);
  const std::vector<Sequence::Impl*> sequences = sequences_of(handles, "prefill");
  const std::vector<decode::DecoderInput> inputs = inputs_of(batch, sequences);
  std::size_t total = 0;
  for (const decode::DecoderInput& input : inputs) total += input.tokens.size();
  // A run of one chunk cannot be stopped.
  const bool may_stop = should_continue && total > static_cast<std::size_t>(decoder->chunk());
  std::optional<Snapshot> snapshot;
  if (may_stop) decoder->settle(inputs, *pool);
  if (may_stop) snapshot.emplace(*pool, inputs);

  std::vector<std::vector<float>> last(inputs.size());
  for (Sequence::Impl* sequence : sequences) sequence->damaged = true;
  const bool completed = decoder->run(
      inputs, *pool, which,
      [&](std::size_t i, std::int64_t token, std::span<const float> logits) {
        if (on_logits) on_logits(i, token, logits);
        if (token + 1 == static_cast<std::int64_t>(inputs[i].tokens.size())) {
          last[i].assign(logits.begin(), logits.end());
        }
      },
      may_stop ? should_continue : ShouldContinue());
  source().require_intact();
  for (std::size_t i = 0; i < inputs.size() && completed; ++i) {
    sequences[i]->tokens.insert(sequences[i]->tokens.end(), inputs[i].tokens.begin(), inputs[i].tokens.end());
    if (!inputs[i].tokens.empty()) sequences[i]->set_logits(std::move(last[i]));
  }
  if (!completed) snapshot->restore();
  for (Sequence::Impl* sequence : sequences) sequence->damaged = false;
  return completed;
}

Model::Model(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&& other) noexcept = default;
Model& Model::operator=(Model&& other) noexcept = default;
Model::~Model() = default;

void Model::Impl::open(const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    open_hugging_face(*this, path);
  } else {
    open_gguf(*this, path);
  }
  if (tokenizer) checkpoint::take_end_tokens(config, *tokenizer);
  weights = checkpoint::bind_weights(config, source());
  if (options.draft == DraftMode::kMtp && !config.has_mtp) {
    throw Error(path, "MTP layer", "one, for ModelOptions::draft", config.mtp_layers > 1 ? "several" : "none");
  }
  choose_context();
}

Model Model::load(const std::string& path, const ModelOptions& options) {
  check_options(options);
  auto impl = std::make_shared<Impl>();
  impl->options = options;
  impl->open(path);
  impl->join_ranks();
  impl->place();
  if (impl->device_weights) {
    impl->device_weights->load(options.progress);
    if (impl->shard) impl->shard->weights.owned = {};  // the device has copies of these copies
  } else if (impl->shard) {
    if (options.prefetch) checkpoint::prefetch_shard(impl->shard->weights);
    if (options.progress) options.progress(1.0);
  } else if (options.prefetch) {
    impl->source().prefetch(options.progress);
  } else if (options.progress) {
    options.progress(1.0);
  }
  impl->source().require_intact();
  impl->begin_ranks();
  impl->info = decode::describe(*impl, path);
  return Model(std::move(impl));
}

const ModelInfo& Model::info() const { return impl_->info; }
std::int64_t Model::context() const { return impl_->context; }
int Model::threads() const { return thread_count(Stream::cpu(impl_->options.threads)); }

int Model::prefill_chunk() const { return static_cast<int>(impl_->decoder->chunk()); }

bool Model::is_end_token(std::int32_t token) const {
  const std::vector<std::int32_t>& ends = impl_->config.end_tokens;
  return std::find(ends.begin(), ends.end(), token) != ends.end();
}

Sequence Model::start() {
  if (impl_->group != nullptr && !impl_->group->leads()) {
    throw Error("start", "rank", "rank 0, which leads", std::to_string(impl_->group->rank()) + ": it may follow()");
  }
  Sequence sequence;
  sequence.impl_ = std::make_unique<Sequence::Impl>();
  sequence.impl_->slot = impl_->pool->acquire();
  sequence.impl_->model = impl_;
  return sequence;
}

bool Model::prefill(std::span<const SequenceInput> batch, const ShouldContinue& should_continue) {
  return impl_->run(batch, decode::LogitsOf::kLast, {}, should_continue);
}

bool Model::prefill(Sequence& sequence, std::span<const std::int32_t> tokens, const ShouldContinue& should_continue) {
  const SequenceInput input{&sequence, tokens};
  return prefill(std::span(&input, 1), should_continue);
}

void Model::step(Sequence& sequence, std::int32_t token) { prefill(sequence, std::span(&token, 1)); }

void Model::step(std::span<Sequence* const> sequences, std::span<const std::int32_t> tokens) {
  if (tokens.size() != sequences.size()) {
    throw Error("step", "tokens", "one for each of " + std::to_string(sequences.size()) + " sequences",
                std::to_string(tokens.size()));
  }
  std::vector<SequenceInput> batch;
  for (std::size_t i = 0; i < sequences.size(); ++i) batch.push_back({sequences[i], tokens.subspan(i, 1)});
  prefill(batch);
}

void Model::prefill_each(Sequence& sequence, std::span<const std::int32_t> tokens,
                         const std::function<void(std::int64_t index, std::span<const float> logits)>& on_logits) {
  const SequenceInput input{&sequence, tokens};
  impl_->run(std::span(&input, 1), decode::LogitsOf::kEach,
             [&](std::size_t, std::int64_t token, std::span<const float> logits) { on_logits(token, logits); }, {});
}

std::vector<double> Model::score(Sequence& sequence, std::span<const std::int32_t> tokens) {
  std::vector<double> scores;
  prefill_each(sequence, tokens, [&](std::int64_t index, std::span<const float> logits) {
    const auto next = static_cast<std::size_t>(index) + 1;
    if (next >= tokens.size()) return;
    scores.push_back(decode::logprob(logits, tokens[next]));
  });
  return scores;
}

std::int32_t Model::sample(const Sequence& sequence, const Sampling& sampling) const {
  Sequence::Impl& state = used(sequence.impl_);
  if (!state.has_logits()) throw Error("sample", "sequence", "at least one token", "none");
  decode::check_sampling(sampling);
  return state.choose(sampling);
}

Sequence::Sequence() = default;
Sequence::~Sequence() = default;
Sequence::Sequence(Sequence&& other) noexcept = default;
Sequence& Sequence::operator=(Sequence&& other) noexcept = default;

std::span<const std::int32_t> Sequence::tokens() const { return used(impl_).tokens; }
std::span<const float> Sequence::logits() const { return used(impl_).read_logits(); }

void Sequence::clear() {
  Impl& state = present(impl_);
  state.damaged = false;
  state.model->pool->clear(state.slot);
  state.tokens.clear();
  state.set_logits({});
}

void Sequence::save(const std::string& path) const {
  Impl& state = used(impl_);
  state.settle();
  decode::save_session(path, state.model->fingerprint(), *state.model->pool, state.slot, state.tokens,
                       state.read_logits());
}

void Sequence::restore(const std::string& path) {
  Impl& state = present(impl_);
  decode::SessionText text = decode::restore_session(path, state.model->fingerprint(), state.model->config.vocabulary,
                                                     *state.model->pool, state.slot);
  state.tokens = std::move(text.tokens);
  state.set_logits(std::move(text.logits));
  state.damaged = false;
}

}  // namespace thalweg
