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
                          const std::function<void(std::int32_t token, std::span<const float> logits)>& on_token) {
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
  std::optional<text::StreamDecoder> decoder;
  if (on_bytes) decoder.emplace(impl_->require_tokenizer());
  const auto report = [&](const std::string& text) { return text.empty() || on_bytes(text); };
  const Stopwatch decode_time;
  bool wanted = true;
  while (wanted && result.steps < max_tokens) {
    if (should_continue && !should_continue()) {
      wanted = false;
      break;
    }
    const std::int32_t token = sample(sequence, sampling);
    if (is_end_token(token)) {
      result.reason = StopReason::kEndToken;
      break;
    }
    if (static_cast<std::int64_t>(sequence.tokens().size()) >= context()) {
      result.reason = StopReason::kContext;
      break;
    }
    result.tokens.push_back(token);
    if (on_token) on_token(token, sequence.logits());
    if (decoder) wanted = report(decoder->push(token));
    step(sequence, token);
    ++result.steps;
  }
  if (!wanted) result.reason = StopReason::kCaller;
  if (decoder && wanted) report(decoder->finish());
  result.decode_seconds = decode_time.seconds();
  return result;
}

}  // namespace thalweg
