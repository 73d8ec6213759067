#include <algorithm>
#include <chrono>
#include <optional>

#include "decode/model_impl.h"
#include "decode/sampler.h"
#include "thalweg/error.h"

namespace thalweg {
namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace

Generated Model::generate(Sequence& sequence, std::span<const std::int32_t> prompt, const Sampling& sampling,
                          std::int64_t max_tokens, const std::function<bool(std::string_view bytes)>& on_bytes,
                          const ShouldContinue& should_continue,
                          const std::function<void(std::int32_t token)>& on_token,
                          const std::function<void(std::int32_t token, std::span<const float> logits)>& on_logits) {
  decode::check_sampling(sampling);
  if (prompt.empty() && sequence.tokens().empty()) {
    throw Error("generate", "prompt", "at least one token to begin with", "none");
  }
  Generated result;
  const Stopwatch prefill_time;
  const bool prefilled = prefill(sequence, prompt, should_continue);
  result.prefill_seconds = prefill_time.seconds();
  if (!prefilled) {
    result.reason = StopReason::kCaller;
    return result;
  }
  result.prompt_tokens = static_cast<std::int64_t>(prompt.size());

  // Without a callback no text is made, so that a model without a tokenizer can generate ids.
  std::optional<text::StreamDecoder> text;
  if (on_bytes) text.emplace(impl_->require_tokenizer());
  const auto report = [&](const std::string& bytes) { return bytes.empty() || on_bytes(bytes); };
  const Stopwatch decode_time;
  const DraftCounts before = impl_->draft_counts;
  Sequence* const sequences[] = {&sequence};
  bool wanted = !should_continue || should_continue();
  const auto take = [&](std::span<const std::int32_t> tokens) {
    const std::int32_t token = tokens.front();
    result.tokens.push_back(token);
    ++result.steps;
    if (on_token) on_token(token);
    if (text) wanted = report(text->push(token));
    // Asked before the next token, if there is to be one.
    if (wanted && result.steps < max_tokens && should_continue) wanted = should_continue();
    return wanted;
  };
  if (wanted && max_tokens > 0) {
    std::function<void(std::size_t, std::int32_t, std::span<const float>)> logits;
    if (on_logits) logits = [&](std::size_t, std::int32_t token, std::span<const float> of) { on_logits(token, of); };
    result.reason = decode(sequences, std::span(&sampling, 1), max_tokens, take, logits).front();
  }
  if (!wanted) result.reason = StopReason::kCaller;
  if (text && wanted) report(text->finish());
  result.decode_seconds = decode_time.seconds();
  const bool drafts = impl_->draft != DraftMode::kOff;
  result.runs = drafts ? impl_->draft_counts.runs - before.runs : result.steps;
  result.drafts = impl_->draft_counts.drafts - before.drafts;
  result.drafts_accepted = impl_->draft_counts.accepted - before.accepted;
  return result;
}

}  // namespace thalweg
