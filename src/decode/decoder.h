#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/weights.h"
#include "decode/batch.h"
#include "decode/layers.h"
#include "decode/mtp_layer.h"
#include "decode/runtime.h"
#include "decode/state.h"

namespace thalweg::decode {

using checkpoint::Weights;

// New tokens of the sequence in a slot. A batch names a slot once.
struct DecoderInput {
  int slot = 0;
  std::span<const std::int32_t> tokens;
};

// Which tokens' logits are computed.
enum class LogitsOf : std::uint8_t { kLast, kEach };

// Called with the logits [vocabulary] after token `token` of input `input`.
using LogitsCallback = std::function<void(std::size_t input, std::int64_t token, std::span<const float> logits)>;

// The layers, from token ids to logits. It calls operations; the device of the runtime decides what runs them.
class Decoder {
 public:
  // Tokens of a prefill run in chunks of at most `chunk`; at most `sequences` are in a batch, each with at most
  // `drafts` drafts, which the MTP layer makes with `mtp`, if the pool has it too. `weights` are on the runtime's
  // device, with or without memory yet.
  Decoder(const ModelConfig& config, const Weights& weights, const Runtime& runtime, std::int64_t chunk,
          std::int64_t sequences, std::int64_t drafts, bool mtp);

  // The bytes that steps need besides weights and states, counted by a walk through steps of many sizes that runs
  // nothing. Throws Error if an operation has no kernel for this model.
  std::size_t plan(StatePool& pool);
  // Allocates what plan() counted.
  void allocate();

  // Runs new tokens and advances their sequences. The tokens of each input are cut into chunks of at most `chunk`, and
  // chunks that fit into `chunk` tokens together run together; single tokens take the decode step, together. So the
  // chunks of a sequence do not depend on its neighbors. The pool must have room for the tokens, and the tokens must be
  // in the vocabulary. `should_continue`, if given, is called between two such runs; when it returns false, the
  // remaining tokens are not run and this returns false.
  bool run(std::span<const DecoderInput> inputs, StatePool& pool, LogitsOf which, const LogitsCallback& on_logits,
           const std::function<bool()>& should_continue);

  // Runs a token and drafts of what follows it of each input, with logits of each. The bits are those of single tokens.
  // The drafts' lengths count, and they are pending: StatePool::drop() takes those away that turn out to be wrong.
  void run_drafts(std::span<const DecoderInput> inputs, StatePool& pool, const LogitsCallback& on_logits);
  // Drafts of what follows the next token of each slot, up to `most` that the pool can have room for.
  void draft(std::span<const MtpLayer::Request> requests, StatePool& pool, std::span<std::vector<std::int32_t>> drafts);
  const MtpLayer* mtp() const { return mtp_.get(); }  // null: none

  // Brings the states of slots with pending tokens up to their lengths.
  void settle(std::span<const DecoderInput> inputs, StatePool& pool);

  // Puts the decode step of a batch of single tokens into the stream: all states move on, and logits [N,vocabulary] f32
  // become those of the next tokens. Needs no host, so that a graph can record it.
  void enqueue_step(const Batch& batch, StatePool& pool, const Tensor& logits);
  // The same of a batch with drafts, with logits [T,vocabulary] of every token. `plain`: it has none after all, and no
  // token is pending.
  void enqueue_drafts(const Batch& batch, StatePool& pool, const Tensor& logits, bool plain);
  // Before and after it: what the MTP layer, if there is one, has to know of the batch's tokens.
  void begin_round(std::span<const MtpLayer::Tokens> runs, StatePool& pool);
  void end_round(const Batch& batch, std::span<const MtpLayer::Tokens> runs, StatePool& pool);
  // Of several ranks: each runs its own share of every layer. On rank 0 run() has the others follow().
  void set_group(RankGroup* group) {
    group_ = group;
    step_.group = group != nullptr && group->replicas() ? nullptr : group;
  }
  RankGroup* group() const { return group_; }
  // What rank 0 runs, on another rank.
  void follow(std::span<const RankedChunk> chunks, bool each_logits, StatePool& pool);

  // Of run() and follow(), so far: between two of them no memory moves that a step needs, unless a step is the first of
  // its kind.
  std::int64_t runs() const { return runs_; }
  // Changes when memory moves whose addresses a graph of a step contains.
  int generation() const { return step_.generation(); }

  // Runs one step with logits of each sequence's last token, timing each operation by itself.
  using OnTime = std::function<void(const std::string& operation, const std::string& kernel, double seconds)>;
  void profile(std::span<const DecoderInput> inputs, StatePool& pool, const OnTime& on_time);

  const Runtime& runtime() const { return runtime_; }
  std::int64_t chunk() const { return chunk_; }
  // Tokens of a round with drafts, at most. Each sequence has one; on a device drafts share what logits have room for.
  std::int64_t round_tokens() const;

 private:
  // Tokens [begin, begin + count) of an input.
  struct Chunk {
    std::size_t input;
    std::int64_t begin;
    std::int64_t count;
    bool last;  // of its input
  };

  // Of one run of T tokens.
  struct Activations {
    Tensor h;       // [T,D] f32: the residual stream
    Tensor x;       // [T,D]: what a block reads, normed
    Tensor y;       // [T,D]: what a block returns
    Tensor hidden;  // [T,D] f32: h behind the final norm, for the MTP layer
    Tensor wanted;  // [rows,D] f32: rows of h whose logits are wanted
    Tensor logits;  // [rows,vocabulary] f32
  };

  bool leads() const { return group_ == nullptr || group_->leads(); }
  // Of so many tokens of a slot that has seen `seen` those of the next run.
  std::int64_t next_chunk(int slot, std::int64_t seen, std::int64_t tokens, StatePool& pool) const;
  // This rank's share of one, and what all have of it at the end; logits behind the last token, if `last`.
  void run_share(const Chunk& chunk, const DecoderInput& input, StatePool& pool, const LogitsCallback& on_logits);
  void report_logits(const Tensor& logits, std::int64_t count,
                     const std::function<void(std::int64_t row, std::span<const float> logits)>& report);
  // Has the other ranks, if there are any, run them too.
  void run_chunks(std::span<const Chunk> chunks, std::span<const DecoderInput> inputs, StatePool& pool, LogitsOf which,
                  const LogitsCallback& on_logits, bool drafts);
  void run_chunks_here(std::span<const Chunk> chunks, std::span<const DecoderInput> inputs, StatePool& pool,
                       LogitsOf which, const LogitsCallback& on_logits, bool drafts);
  static void reserve(std::span<const DecoderInput> inputs, StatePool& pool);
  Activations lay_out_activations(std::int64_t wanted);
  // Everything up to the residual stream after the last layer; if late_ffn_, up to that layer's mixer.
  void run_layers(const Activations& activations, StatePool& pool);
  void run_ffn(std::size_t i, const Tensor& h, const Tensor& y, const Tensor& x);
  // Some rows of the activations: [count,D] each.
  struct Rows {
    Tensor h;
    Tensor y;
    Tensor x;
  };
  static Rows rows_of(const Activations& activations, std::int64_t first, std::int64_t count);
  // Those of a list, where other rows of y and x are no longer needed.
  Rows gather(const Activations& activations, const ConstTensor& rows);
  // logits [count,vocabulary] of these rows.
  void run_head(const Rows& rows, const Activations& activations, const Tensor& logits);
  void run_final_norm(const ConstTensor& h, const ConstTensor& y, const Tensor& normed);
  void run_norm_and_head(const ConstTensor& h, const ConstTensor& y, const Activations& activations,
                         const Tensor& logits);
  // Of the wanted rows [first, first + count).
  void run_wanted(const Activations& activations, std::int64_t first, std::int64_t count);
  // Of the trunk alone.
  void settle_states(std::span<const DecoderInput> inputs, StatePool& pool);
  void plan_step(std::int64_t tokens, std::int64_t sequences, StatePool& pool);
  void plan_drafts(std::int64_t tokens, std::int64_t sequences, StatePool& pool);
  std::int64_t logit_rows() const;
  std::vector<StepMemory*> step_memories();

  const ModelConfig& config_;
  const Weights& weights_;
  const Runtime& runtime_;
  std::int64_t chunk_;
  std::int64_t sequences_;
  std::int64_t drafts_;
  Batch batch_;
  Step step_;
  RankGroup* group_ = nullptr;
  std::unique_ptr<MtpLayer> mtp_;  // null: no drafts of it
  // The last layer's feed-forward block runs for the rows whose logits are wanted alone, where these are few: nothing
  // else depends on it, without an MTP layer.
  bool late_ffn_ = false;
  std::int64_t runs_ = 0;
  std::vector<float> logits_on_host_;
};

}  // namespace thalweg::decode
