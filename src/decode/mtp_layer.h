#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/weights.h"
#include "decode/batch.h"
#include "decode/layers.h"
#include "decode/runtime.h"
#include "decode/state.h"

namespace thalweg::decode {

// The MTP layer where the model runs: it foresees the token after the next one, from the next token's embedding and the
// trunk's hidden state, behind its final norm, at the token before. Fed with its own choice and its own output behind
// its norm, it foresees the one after that, and so on.
//
// Of the tokens that the trunk runs only keys and values are computed, some tokens at a time. The last ones wait in
// StatePool::MtpRows for the next draft, whose pass computes them too.
class MtpLayer {
 public:
  // At most `chunk` tokens of a prefill at once, and `drafts` drafts for each of `sequences`. `step` is the trunk's.
  MtpLayer(const checkpoint::ModelConfig& config, const checkpoint::Weights& weights, const Runtime& runtime,
           Step& step, std::int64_t chunk, std::int64_t sequences, std::int64_t drafts);

  // New tokens of a slot in a run of the trunk, whose rows in that run begin at `row`.
  struct Tokens {
    int slot = 0;
    std::span<const std::int32_t> tokens;
    std::int64_t seen = 0;  // tokens of the slot before
    std::int64_t row = 0;
  };
  // Before a run of the trunk: computes what waits in slots that have no room for these tokens.
  void make_room(std::span<const Tokens> runs, StatePool& pool);
  // After it, with its hidden states [T,D] f32.
  void take(std::span<const Tokens> runs, const Tensor& hidden, StatePool& pool);
  // Computes all that waits.
  void settle(std::span<const int> slots, StatePool& pool);

  // A sequence that wants drafts of what follows `next`, its next token.
  struct Request {
    int slot = 0;
    std::int32_t next = 0;
    std::int64_t most = 0;  // above 0
  };
  // Appends up to `most` drafts to each of `drafts`, none for a slot that the layer has lost. The pool has room for
  // them. On a device the passes follow each other without the host, which waits for the last one.
  void draft(std::span<const Request> requests, StatePool& pool, std::span<std::vector<std::int32_t>> drafts);

  // The logits [requests,vocabulary] of the last pass of draft(), for tests: rows of those that had a draft in it.
  ConstTensor last_logits() const { return last_logits_; }

  // Walks through the passes of tokens of a prefill and through the largest one of drafts, which run nothing.
  void plan_store(std::int64_t tokens, std::int64_t sequences, StatePool& pool);
  void plan_drafts(StatePool& pool);
  StepMemory& memory() { return memory_; }

 private:
  // Of a pass over T tokens of N sequences.
  struct Activations {
    Tensor hidden;  // [T,D] f32: what goes in beside the tokens
    Tensor h;       // [T,D] f32: the residual stream
    Tensor joined;  // [T,2*D]
    Tensor x;       // [T,D]
    Tensor y;       // [T,D]
  };
  // The drafts' outputs, behind the layer's norm, in memory that the passes of one round share.
  struct Outputs {
    Tensor h;       // [N,D] f32
    Tensor y;       // [N,D]
    Tensor x;       // [N,D]
    Tensor hidden;  // [N,D] f32
    Tensor logits;  // [N,vocabulary] f32
    Tensor tokens;  // [N] i32
  };
  // A pass on a device, recorded as a graph.
  struct Kind {
    std::int64_t tokens = 0;
    std::int64_t sequences = 0;
    bool first = false;                             // of a round: over batch_, else over chain_
    auto operator<=>(const Kind&) const = default;  // NOLINT(modernize-use-nullptr): its mistake
  };
  Activations take_activations(Arena& arena) const;
  Outputs take_outputs(Arena& arena, std::int64_t sequences) const;
  void begin(const Batch& batch, bool few);
  // From tokens and hidden states to x, what the layer's attention reads.
  void join(const Activations& a);
  void store(const Activations& a, StatePool& pool);
  // The whole layer, and the likeliest token after the last token of each sequence; -1 where logits are no numbers.
  std::vector<std::int32_t> choose(const Activations& a, const Outputs& out, StatePool& pool);
  void run_head(const Outputs& out);
  std::vector<std::int32_t> read_tokens(const Outputs& out);
  // Of the requests that get drafts: composes the first pass, over what waits and the next token.
  std::vector<std::size_t> begin_drafts(std::span<const Request> requests, const StatePool& pool);
  void load_kept(std::span<const Request> requests, std::span<const std::size_t> open, const Tensor& hidden,
                 StatePool& pool);
  void end_first_pass(std::span<const Request> requests, std::span<const std::size_t> open, StatePool& pool) const;
  void draft_here(std::span<const Request> requests, StatePool& pool, std::span<std::vector<std::int32_t>> drafts);
  void draft_on_device(std::span<const Request> requests, StatePool& pool, std::span<std::vector<std::int32_t>> drafts);
  // A pass of the device's: `out` are the round's outputs, whose tokens chain_ runs next.
  void enqueue(const Kind& kind, const Activations& a, const Outputs& out, StatePool& pool);
  void launch(const Kind& kind, const Activations& a, const Outputs& out, StatePool& pool);
  // Lays a pass over the step's batch out in memory that begins with the outputs for `sequences`.
  void lay_out_pass(std::int64_t sequences, Activations& a, Outputs& out);

  void copy_rows(const Tensor& to, std::int64_t to_row, const ConstTensor& from, std::int64_t from_row,
                 std::int64_t count) const;
  void norm(const ConstTensor& x, const ConstTensor& weight, const Tensor& y);
  // The slot's kept hidden states [kept,D].
  static Tensor kept(const StatePool& pool, int slot);
  // Those that wait have been computed.
  void forget_waiting(int slot, StatePool& pool) const;

  const checkpoint::ModelConfig& config_;
  const checkpoint::Weights& weights_;
  const Runtime& runtime_;
  Step& step_;
  std::int64_t sequences_;
  std::int64_t drafts_;
  Batch batch_;
  Batch chain_;  // a draft of each sequence, which the device composes
  StepMemory memory_;
  PinnedMemory read_;  // [drafts,sequences] tokens
  std::map<Kind, Graph> graphs_;
  int recorded_generation_ = 0;
  ConstTensor last_logits_;
};

}  // namespace thalweg::decode
