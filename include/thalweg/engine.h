#pragma once

// Many requests at once on one model: continuous batching, and a prefix cache so that no prompt is computed twice.
//
//   Engine engine(Model::load("model.gguf", options));
//   Request request;
//   request.prompt = engine.model().tokenize("Where is the ball?");
//   TokenStream stream = engine.stream(std::move(request));
//   for (Output output; stream.next(output);) std::cout << output.text << std::flush;
//
// Any thread may call an Engine's functions; a TokenStream is used by one thread at a time, and may be cancelled by
// any.
//
// A request's tokens and text do not depend on what else runs: with equal settings they are those of a run alone. On a
// CPU its logits are the same too, bit for bit, even if the beginning of its prompt comes from the prefix cache, unless
// that kept an answer (EngineOptions::cache_answers).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thalweg/api.h"
#include "thalweg/error.h"
#include "thalweg/grammar.h"
#include "thalweg/model.h"
#include "thalweg/sampling.h"

THALWEG_API_BEGIN
namespace thalweg {

struct EngineOptions {
  int queue = 256;                                     // requests that may wait; further ones are refused
  std::uint64_t cache_bytes = std::uint64_t{1} << 30;  // of host memory for the prefix cache; 0: none
  // The same of device memory, allocated at the start; 0: none, -1: a quarter of what is free once the model is loaded.
  // What no longer fits moves to host memory. Ignored where the model runs on the host, where the device has no memory
  // of its own, and with several ranks.
  std::int64_t cache_device_bytes = -1;
  // A folder that keeps the contents of the prefix cache after the process ends; empty: none. One engine at a time may
  // use it. Its files contain the tokens of prompts.
  std::string cache_dir;
  std::uint64_t cache_dir_bytes = std::uint64_t{16} << 30;  // most bytes of its files
  // The share of the time that prompts get while other requests generate, or their share of the requests if that is
  // larger; up to a quarter of a second of it can accumulate. Above 0, below 1.
  double prompt_share = 0.3;
  // Keeps answers in the prefix cache as well, so that the next turn of a conversation, whose prompt begins with the
  // last prompt and its answer, only computes new tokens. The result is then that of a Sequence that continues after
  // the answer, and no longer bit for bit that of a cold run: a decode step sums in another order than a prefill.
  // Files in cache_dir are made for one setting or the other.
  bool cache_answers = false;
};

// Which tokens may come next, as a grammar decides. Used by the engine's thread only.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // A bit for each token of the vocabulary, the lowest of the first word for token 0; end tokens included. At least one
  // is set. Valid until accept().
  virtual std::span<const std::uint32_t> allowed() = 0;
  // The token that was chosen among them.
  virtual void accept(std::int32_t token) = 0;
};

struct Request {
  std::vector<std::int32_t> prompt;  // at least one token
  // Positions in the prompt up to which later requests are likely to be equal: the ends of a conversation's messages.
  // The prefix cache keeps the state near them.
  std::vector<std::int64_t> boundaries;
  Sampling sampling;
  std::int64_t max_tokens = -1;   // -1: until the context is full
  std::vector<std::string> stop;  // text that ends the answer and does not belong to it
  std::optional<int> logprobs;    // also of this many likeliest tokens at each position
  bool ignore_end = false;        // treats end tokens like other tokens
  std::unique_ptr<TokenConstraint> constraint;
};

enum class FinishReason : std::uint8_t {
  kEndToken,   // the model ended the text
  kStop,       // one of Request::stop
  kLength,     // max_tokens, or the context is full
  kCancelled,  // by cancel(), or the engine was stopped
  kError,      // Output::error says which
};

std::string_view name(FinishReason reason);  // "end", "stop", "length", "cancelled", "error"

struct TokenLogprobs {
  struct Entry {
    std::int32_t token = 0;
    double logprob = 0;  // the model's own, before penalty, temperature and constraint
  };
  Entry chosen;
  std::vector<Entry> likeliest;  // in descending order
};

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;     // of them, not computed
  std::int64_t generated_tokens = 0;  // without the end token
  double queue_seconds = 0;           // until the first token of the prompt was run
  double prompt_seconds = 0;          // from then until the first token was chosen
  double generation_seconds = 0;      // from then on
  std::int64_t draft_tokens = 0;      // that were proposed (ModelOptions::draft)
  std::int64_t accepted_tokens = 0;   // of them, those that were right
};

// What a request has produced since its last output.
struct Output {
  std::string text;  // UTF-8 in whole characters; empty for models without a tokenizer
  std::vector<std::int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;  // of each token, if requested
  std::optional<FinishReason> finish;   // of the last output
  std::string stop;                     // the one of Request::stop that ended it
  std::string error;
  Usage usage;  // so far
};

struct EngineStats {
  std::int64_t waiting = 0;  // requests
  std::int64_t running = 0;
  std::uint64_t requests = 0;  // accepted; this and the following counts since the engine's start
  std::uint64_t refused = 0;
  std::uint64_t finished = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t failed = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t prompt_tokens_cached = 0;
  std::uint64_t prompt_tokens_computed = 0;
  std::uint64_t generated_tokens = 0;
  std::uint64_t steps = 0;           // runs of the model
  std::uint64_t step_sequences = 0;  // summed over the steps
  double step_seconds = 0;           // in the model
  double bookkeeping_seconds = 0;    // in the prefix cache
  std::uint64_t cache_bytes = 0;     // of host memory, now
  std::uint64_t cache_device_bytes = 0;
  std::uint64_t cache_device_budget = 0;
  std::uint64_t cache_checkpoints = 0;
  std::uint64_t cache_evictions = 0;  // of checkpoints
  std::uint64_t cache_dir_bytes = 0;
  std::uint64_t cache_dir_checkpoints = 0;
  std::uint64_t cache_dir_evictions = 0;
  std::uint64_t cache_dir_tokens = 0;    // that were read from there
  std::uint64_t cache_dir_failures = 0;  // files that could not be written, or were damaged
  std::uint64_t draft_tokens = 0;        // that were proposed
  std::uint64_t accepted_tokens = 0;     // of them, those that were right
};

// The queue is full, or the engine is stopping: try again later or elsewhere.
class Refused : public Error {
 public:
  using Error::Error;
};

using RequestId = std::uint64_t;
// Called by the engine's thread, in order; must neither wait nor call the engine. What it throws cancels the request.
using OnOutput = std::function<void(const Output&)>;

class TokenStream;

// All functions may be called by any thread.
class Engine {
 public:
  // Takes over the model, which must have no Sequence; ModelOptions::sequences requests run at once. Throws Error for
  // options out of range and for a cache_dir that cannot be used, and then leaves the model to the caller.
  explicit Engine(Model&& model, const EngineOptions& options = {});
  // Cancels what runs, and waits for it.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // For its text functions and info(); no other function may be called.
  const Model& model() const;

  // Constrains a request's answer to a grammar. `after_thoughts`: the prompt has opened <think>, and everything but the
  // end token is allowed until the model writes </think>. Throws Error for a model without a tokenizer, or whose
  // vocabulary cannot spell every text. Must not outlive the engine. Constraints of one engine share their masks if
  // their grammars were made from the same text.
  std::unique_ptr<TokenConstraint> constraint(const Grammar& grammar, bool after_thoughts = false) const;

  // For a prompt that has opened <think>: after `tokens` tokens of thoughts only </think> may follow. `then` is the
  // request's other constraint, which receives the thoughts as well. Throws Error for a model whose vocabulary has no
  // </think>, and for a negative number.
  std::unique_ptr<TokenConstraint> thought_budget(std::int64_t tokens,
                                                  std::unique_ptr<TokenConstraint> then = nullptr) const;

  // Throws Error for a request that cannot run, Refused for one that cannot run now. The last call of `on_output` has
  // `finish`.
  RequestId submit(Request request, OnOutput on_output);
  // The same, to be read by next().
  TokenStream stream(Request request);
  // Ends a request within a step, if it still runs.
  void cancel(RequestId id);

  // Refuses further requests and waits until the others have finished; after `seconds` it cancels them.
  // Returns whether all finished by themselves.
  bool drain(double seconds);

  // As of the last step. A request whose last output has been read is counted; with cache_answers, what is kept of its
  // answer appears at the end of the step.
  EngineStats stats() const;

  struct THALWEG_HIDDEN Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

// The outputs of a request, for a thread that waits for them. Destroying it cancels the request. Must not outlive the
// engine.
class TokenStream {
 public:
  TokenStream() = default;  // of no request
  TokenStream(TokenStream&&) noexcept;
  TokenStream& operator=(TokenStream&&) noexcept;
  ~TokenStream();

  // Waits for an output, joined with those that have come since; false after the last.
  bool next(Output& output);
  void cancel();

 private:
  friend class Engine;
  struct THALWEG_HIDDEN Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace thalweg
THALWEG_API_END
