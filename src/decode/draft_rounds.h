#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "core/arena.h"
#include "decode/batch.h"
#include "decode/decoder.h"
#include "decode/runtime.h"
#include "decode/state.h"
#include "thalweg/sampling.h"

namespace thalweg::decode {

// A sequence's next token and drafts of what follows it.
struct RoundInput {
  int slot = 0;
  std::span<const std::int32_t> tokens;
  Sampling sampling;  // without a penalty
};

// Rounds with drafts on a device. What follows each token is chosen where the logits are, so that the host reads a few
// numbers instead of rows of the vocabulary. Rounds of one size are recorded as a graph.
class DraftRounds {
 public:
  // Nothing is allocated before allocate().
  DraftRounds(Decoder& decoder, StatePool& pool, std::int64_t vocabulary);

  std::size_t plan();  // bytes on the device
  void allocate();

  // Tokens of a round, at most.
  std::int64_t most_tokens() const { return decoder_.round_tokens(); }
  // Runs them, and returns the tokens [T] that follow each; -1 where logits are not numbers. Valid until the next call.
  std::span<const std::int32_t> run(std::span<const RoundInput> inputs);
  // After a token of the last round, [vocabulary] on the device.
  const void* logits(std::int64_t row) const { return logits_.row(row); }

 private:
  struct Kind {
    std::int64_t tokens = 0;
    std::int64_t sequences = 0;
    bool plain = false;                             // no drafts, nothing pending
    bool draws = false;                             // any sequence has a temperature
    bool few = false;                               // drafts of each sequence: few_drafts()
    auto operator<=>(const Kind&) const = default;  // NOLINT(modernize-use-nullptr): its mistake
  };

  void lay_out(Arena& arena);
  void upload_settings(std::span<const RoundInput> inputs);
  void enqueue(const Kind& kind);
  Tensor rows(const Tensor& all) const { return narrow(all, 0, 0, batch_.count()); }

  Decoder& decoder_;
  StatePool& pool_;
  const Runtime& runtime_;
  std::int64_t vocabulary_;
  Batch batch_;
  StepMemory memory_;
  StepMemory workspace_;
  // On the device, a row for each token.
  Tensor logits_;                       // [rows,vocabulary]
  Tensor chosen_, top_k_, lengths_;     // [rows]
  Tensor temperature_, top_p_, min_p_;  // [rows]
  Tensor seed_;                         // [rows,2]
  PinnedMemory read_;
  std::map<Kind, Graph> graphs_;
  int recorded_generation_ = 0;
};

}  // namespace thalweg::decode
