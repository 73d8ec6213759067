#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/shard.h"
#include "checkpoint/tokenizer.h"
#include "checkpoint/weights.h"
#include "decode/decode_loop.h"
#include "decode/decoder.h"
#include "decode/device_weights.h"
#include "decode/draft_rounds.h"
#include "decode/drafter.h"
#include "decode/kept_logits.h"
#include "decode/rank_group.h"
#include "decode/runtime.h"
#include "decode/state.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "thalweg/model.h"

namespace thalweg {

struct Model::Impl {
  ~Impl();

  // The file: one of the two is null.
  std::unique_ptr<io::GgufFile> gguf;
  std::unique_ptr<io::SafetensorsFile> safetensors;
  checkpoint::ModelConfig config;
  checkpoint::Weights weights;
  ModelOptions options;
  // Of several ranks: the others, and what this one holds. Null alone.
  struct Shard {
    checkpoint::ModelConfig config;
    checkpoint::Weights weights;
  };
  std::unique_ptr<Shard> shard;
  std::unique_ptr<decode::RankGroup> group;
  std::int64_t context = 0;
  std::string device_reason;       // ModelInfo::device_reason
  std::uint64_t device_bytes = 0;  // ModelInfo::device_bytes
  std::unique_ptr<decode::Runtime> runtime;
  std::unique_ptr<decode::RankedDevice> device_ranks;     // of several ranks on devices
  std::unique_ptr<decode::DeviceWeights> device_weights;  // null on the host
  std::unique_ptr<decode::StatePool> pool;
  std::unique_ptr<decode::Decoder> decoder;
  std::unique_ptr<decode::KeptLogits> kept_logits;  // null on the host
  std::unique_ptr<decode::DecodeLoop> loop;         // null on the host
  std::unique_ptr<decode::DraftRounds> rounds;      // null on the host and without drafts
  DraftMode draft = DraftMode::kOff;                // ModelOptions::draft, where the device has it
  bool draft_by_mtp = false;                        // drafts come from the MTP layer, else from the text so far
  decode::RoundCosts round_costs;
  DraftCounts draft_counts;
  std::optional<text::Tokenizer> tokenizer;
  std::string chat_template;  // as the file has it; empty without one
  ModelInfo info;

  const io::TensorSource& source() const {
    return gguf != nullptr ? static_cast<const io::TensorSource&>(*gguf) : *safetensors;
  }

  const text::Tokenizer& require_tokenizer() const;

  // Reads the file's configuration, tokenizer and tensors.
  void open(const std::string& path);

  // Compares with the other ranks, if there are any, and takes this one's share; the other ranks' states are this
  // model's too from begin_ranks() on.
  void join_ranks();
  // Where this rank runs: options.device, or if none is wanted a GPU where every rank has one, else the CPU.
  void choose_rank_device();
  void connect_rank_devices();
  void begin_ranks();

  // Chooses the device and reserves what the model needs on it; loads nothing.
  void place();
  // The weights where the model runs.
  const checkpoint::Weights& weights_there() const {
    return device_weights ? device_weights->weights() : shard ? shard->weights : weights;
  }
  // Of the layers that run here.
  const checkpoint::ModelConfig& config_there() const { return shard ? shard->config : config; }

  // Computed by the first call, which reads from every tensor.
  std::uint64_t fingerprint();

  // The states of a batch, each once; throws Error of `operation` for one of another model or that was damaged.
  std::vector<Sequence::Impl*> sequences_of(std::span<Sequence* const> batch, std::string_view operation);

  // Stores the logits of each input's last token in its sequence. Returns false if `should_continue` did.
  bool run(std::span<const SequenceInput> batch, decode::LogitsOf which, const decode::LogitsCallback& on_logits,
           const ShouldContinue& should_continue);

  using AllowedOf = std::function<decode::TokenMask(std::size_t sequence)>;
  using OnTokens = std::function<bool(std::span<const std::int32_t> tokens)>;
  using OnLogits = std::function<void(std::size_t sequence, std::int32_t token, std::span<const float> logits)>;
  // Model::decode. `allowed`, if given, says which tokens may follow what a sequence has and what on_tokens was given,
  // and is called while these tokens run; there are no drafts then.
  std::vector<StopReason> decode(std::span<Sequence* const> handles, std::span<const Sampling> sampling,
                                 std::int64_t max_tokens, const AllowedOf& allowed, const OnTokens& on_tokens,
                                 const OnLogits& on_logits, bool ignore_end);
  // Whether tokens are then chosen where the logits are.
  bool constrains_on_device() const { return loop != nullptr && group == nullptr; }

  // A sequence of the next round, and what drafts for it.
  struct Drafted {
    Sequence::Impl* sequence = nullptr;
    std::int32_t next = 0;  // its next token
    std::int64_t room = 0;  // for drafts
    decode::Drafter* drafter = nullptr;
  };
  // Gives each drafter its drafts of what follows the next token.
  void make_drafts(std::span<const Drafted> batch);

  // Whether the draft is the next token of a sequence of the batch, whose tokens and logits are those before it.
  using AcceptDraft = Model::AcceptDraft;
  // Runs the next token of each sequence and drafts of those that follow. Each draft is judged in order; from the first
  // that is wrong on, they are taken back. `sampling`, one for each where can_choose() of all: what follows is chosen
  // on the device, and a sequence has its logits there. Returns how many tokens of each were kept.
  std::vector<std::int64_t> run_drafts(std::span<const SequenceInput> batch, std::span<const Sampling> sampling,
                                       const AcceptDraft& accept);
  bool can_choose(const Sampling& sampling) const { return rounds != nullptr && sampling.repeat_penalty == 1.0F; }

 private:
  void choose_context();
  void judge_here(std::span<const decode::DecoderInput> inputs, std::span<Sequence::Impl* const> sequences,
                  std::span<std::int64_t> kept, const AcceptDraft& accept);
  void judge_on_device(std::span<const decode::DecoderInput> inputs, std::span<Sequence::Impl* const> sequences,
                       std::span<const Sampling> sampling, std::span<std::int64_t> kept, const AcceptDraft& accept);
  std::vector<decode::DecoderInput> inputs_of(std::span<const SequenceInput> batch,
                                              std::span<Sequence::Impl* const> sequences) const;

  // Throws Error if the device is absent, or lacks a kernel or the memory.
  void place_on(Device device);

  std::optional<std::uint64_t> fingerprint_;
};

struct Sequence::Impl {
  std::shared_ptr<Model::Impl> model;
  int slot = -1;
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;  // after the tokens; empty before the first, or if `away`
  bool away = false;          // the logits are those that Model::Impl::kept_logits has of the slot
  struct Chosen {
    Sampling sampling;
    std::int32_t token = 0;
  };
  std::optional<Chosen> chosen;  // the next token, where it has been chosen already
  bool damaged = false;          // an error ended a run, and the slot's state belongs to no token

  // Brings the state in the slot up to the tokens.
  void settle() const {
    const decode::DecoderInput input{slot, {}};
    model->decoder->settle(std::span(&input, 1), *model->pool);
  }

  bool has_logits() const { return away || !logits.empty(); }
  const std::vector<float>& read_logits();
  void set_logits(std::vector<float> values);
  // The next token, among those that sample_token() is allowed: always the same, if it has been chosen already. Throws
  // Error for logits that are not numbers.
  std::int32_t choose(const Sampling& sampling, std::span<const std::uint32_t> allowed = {});

  // Takes the last tokens back, which were drafts of the last run, to where the logits were these, or those of a row of
  // the device's last round.
  void take_back(std::int64_t count, std::vector<float> logits_before);
  void take_back(std::int64_t count, std::int64_t row_before);

  ~Impl() {
    if (model != nullptr && slot >= 0) model->pool->release(slot);
  }
};

namespace decode {

ModelInfo describe(const Model::Impl& model, const std::string& path);

}  // namespace decode
}  // namespace thalweg
