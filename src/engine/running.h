#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decode/drafter.h"
#include "engine/disk_cache.h"
#include "engine/model_slots.h"
#include "engine/stop_text.h"
#include "text/tokenizer.h"
#include "thalweg/engine.h"

namespace thalweg::engine {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// A request that was accepted.
struct Accepted {
  RequestId id = 0;
  Request request;
  OnOutput on_output;
  Clock::time_point since;
  bool looked_on_disk = false;
  DiskCache::Loaded loaded;  // what the disk has of its prompt
};

// A request that has a slot: first its prompt is run, then tokens are chosen, until it is finished.
class Running {
 public:
  Running(Accepted accepted, Sequence sequence, const text::Tokenizer* tokenizer);

  RequestId id() const { return accepted_.id; }
  const Request& request() const { return accepted_.request; }
  Sequence& sequence() { return sequence_; }
  Clock::time_point since() const { return accepted_.since; }
  std::int64_t generated() const { return usage_.generated_tokens; }

  std::int64_t prompt_size() const { return static_cast<std::int64_t>(accepted_.request.prompt.size()); }
  // Tokens of the prompt that are in the state.
  std::int64_t computed() const { return computed_; }
  bool has_prompt() const { return computed_ == prompt_size(); }
  void advance(std::int64_t tokens) { computed_ += tokens; }
  // Positions of the prompt where the state is kept, ascending.
  void set_checkpoints(std::vector<std::int64_t> positions) { checkpoints_ = std::move(positions); }
  // The next of them behind computed(), or the prompt's end.
  std::int64_t next_checkpoint() const;
  bool is_at_checkpoint() const;

  bool finished() const { return output_.finish.has_value(); }
  FinishReason reason() const { return *output_.finish; }  // of one that is finished
  std::int64_t tokens_left() const;
  bool needs_logits() const { return accepted_.request.logprobs.has_value(); }
  bool is_constrained() const { return accepted_.request.constraint != nullptr; }
  // Which tokens may come next: a bit for each, at least one is set; empty: all. Throws Error if the constraint has
  // none.
  std::span<const std::uint32_t> allowed(const ModelSlots& slots);

  // Drafts from the prompt and the tokens so far, from now on.
  void begin_drafts(DraftMode mode, int most) { drafter_.emplace(mode, most, accepted_.request.prompt); }
  decode::Drafter& drafter() { return *drafter_; }
  // For drafts, in a sequence of so many tokens at most.
  std::int64_t room(std::int64_t context) const;
  // What became of them.
  void judge(std::int64_t drafts, std::int64_t accepted, std::int64_t sequences, const decode::RoundCosts& costs);

  // The next token by sampling and constraint. Throws Error for logits that are no numbers.
  std::int32_t choose(const ModelSlots& slots);
  // Takes the next token. `context`: most tokens of a sequence.
  void take(std::int32_t token, bool is_end, std::int64_t context);
  void finish(FinishReason reason, const std::string& error = {});

  // Reports what came since the last call, if anything. What the callback throws cancels the request.
  void report();

 private:
  void add_text(const std::string& text);
  void add_logprobs(std::int32_t token);

  Accepted accepted_;
  Sequence sequence_;
  std::int64_t computed_ = 0;
  std::vector<std::int64_t> checkpoints_;
  std::optional<text::StreamDecoder> decoder_;
  std::optional<decode::Drafter> drafter_;
  std::optional<std::int32_t> chosen_;  // and not taken yet
  std::vector<std::uint32_t> mask_;     // of allowed()
  StopText stop_;
  Usage usage_;
  Clock::time_point started_;
  std::optional<Clock::time_point> first_token_;
  Output output_;
  bool reported_finish_ = false;
};

}  // namespace thalweg::engine
