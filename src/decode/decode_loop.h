#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "core/arena.h"
#include "decode/batch.h"
#include "decode/decoder.h"
#include "decode/runtime.h"
#include "decode/state.h"
#include "thalweg/model.h"
#include "thalweg/sampling.h"

namespace thalweg::decode {

// A sequence that a loop continues.
struct LoopInput {
  int slot = 0;
  std::span<const std::int32_t> tokens;  // so far, all of them in the state
  std::int32_t next = 0;                 // the first token to run
  Sampling sampling;
};

// The tokens that may follow: a bit for each of the vocabulary, in words of 32. Empty: all.
using TokenMask = std::span<const std::uint32_t>;

// Decodes a batch on a device, step after step: a step runs each sequence's next token, and chooses the one after it
// where it is, as the next step's input. So a step can be launched before the host has seen the tokens that it runs.
// A sequence whose next token is an end token is left alone from then on: neither is the token run, nor does its state
// change. Where tokens are constrained, the host sees each token before it says which may follow, while the layers run
// it: no step is launched ahead. Of several ranks each has the loop: rank 0's start() and launch() have the others do
// the same, on whose devices the same tokens are chosen.
class DecodeLoop {
 public:
  // Nothing is allocated before allocate().
  DecodeLoop(Decoder& decoder, StatePool& pool, std::int64_t vocabulary, std::span<const std::int32_t> end_tokens);

  std::size_t plan();  // bytes on the device
  void allocate();

  // ignore_end: end tokens are tokens like others. constrained: launch() leaves the choice of tokens to choose(), which
  // must follow; not for several ranks.
  void start(std::span<const LoopInput> inputs, bool ignore_end, bool constrained = false);

  // Launches the next step. At most two may be launched whose tokens have not been read.
  void launch();
  // Chooses the tokens of the step that was launched last; `mask(input)` may be slow, the step is running.
  void choose(const std::function<TokenMask(std::size_t input)>& mask);
  bool is_full() const { return launched_ - read_ == kSteps; }
  // Waits for the oldest step not yet read, and returns the tokens that it chose [N]: -1 for a sequence that had ended
  // before, and where logits are not numbers. Valid until the next but one is launched.
  std::span<const std::int32_t> read();
  // The logits [vocabulary] of a sequence after the step that was read last. Another step may have been launched since.
  void read_logits(std::size_t input, std::vector<float>& logits) const;
  // The same where they are, [vocabulary].
  const void* logits(std::size_t input) const;

 private:
  // What a graph of a step depends on besides the loop's own memory.
  struct Settings {
    bool draws = false;                                 // any sequence has a temperature
    bool penalizes = false;                             // any has a repetition penalty
    bool ends = false;                                  // at end tokens
    bool constrains = false;                            // tokens are chosen by choose()
    auto operator<=>(const Settings&) const = default;  // NOLINT(modernize-use-nullptr): its mistake
  };
  static constexpr std::size_t kSteps = 2;                     // launched and not read
  enum class Work : std::uint8_t { kLayers, kChoice, kBoth };  // of a step, in a graph of its own

  std::int64_t count() const { return batch_.count(); }
  std::int64_t words() const { return (vocabulary_ + 31) / 32; }  // of a mask
  void start_here(std::span<const LoopInput> inputs, bool ignore_end, bool constrained);
  void launch_here();
  int generation() const { return decoder_.generation() + workspace_.allocations(); }
  // Drops the graphs if memory has moved since they were recorded, and then returns false. Of several ranks, if it has
  // on any of them, and all call it: they record and launch graphs together.
  bool keep_graphs();
  void lay_out(Arena& arena);
  void enqueue(Work work, std::size_t parity);
  void enqueue_choice(std::size_t parity);
  void launch(Work work, std::size_t parity);
  void enqueue_read(std::size_t parity);
  void upload_mask(std::size_t input, TokenMask mask);
  void upload_settings(std::span<const LoopInput> inputs);
  SampleTokensArgs sample_args(std::size_t parity) const;
  Tensor rows(const Tensor& all) const { return narrow(all, 0, 0, count()); }

  Decoder& decoder_;
  StatePool& pool_;
  const Runtime& runtime_;
  std::int64_t vocabulary_;
  std::vector<std::int32_t> end_tokens_on_host_;
  Batch batch_;
  StepMemory memory_;
  StepMemory workspace_;
  Settings settings_;
  // On the device, for all slots.
  std::array<Tensor, kSteps> logits_;  // [slots,vocabulary], of even and of odd steps
  Tensor tokens_;                      // [slots]
  Tensor end_tokens_;                  // [E]
  Tensor history_;                     // [slots,context]
  Tensor temperature_, top_k_, top_p_, min_p_, repeat_penalty_, repeat_last_;  // [slots]
  Tensor seed_;                                                                // [slots,2]
  Tensor allowed_;                                                             // [slots,words]
  std::array<PinnedMemory, kSteps> read_tokens_;
  PinnedMemory masks_;                 // [slots,words]
  std::vector<std::uint8_t> is_open_;  // by input: allowed_ has all tokens
  std::array<Event, kSteps> events_;
  std::size_t launched_ = 0;
  std::size_t read_ = 0;
  std::map<std::tuple<std::int64_t, Settings, std::size_t, Work>, Graph> graphs_;  // by count, settings and parity
  int recorded_generation_ = 0;
  std::int64_t checked_runs_ = -1;  // Decoder::runs() at the last look
};

}  // namespace thalweg::decode
