#include "engine/running.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "decode/logprobs.h"

namespace thalweg::engine {

Running::Running(Accepted accepted, Sequence sequence, const text::Tokenizer* tokenizer)
    : accepted_(std::move(accepted)),
      sequence_(std::move(sequence)),
      computed_(static_cast<std::int64_t>(sequence_.tokens().size())),
      stop_(accepted_.request.stop),
      started_(Clock::now()) {
  if (tokenizer != nullptr) decoder_.emplace(*tokenizer);
  usage_.prompt_tokens = prompt_size();
  usage_.cached_tokens = computed_;
  usage_.queue_seconds = seconds_between(accepted_.since, started_);
}

std::int64_t Running::next_checkpoint() const {
  const auto next = std::upper_bound(checkpoints_.begin(), checkpoints_.end(), computed_);
  return next != checkpoints_.end() ? *next : prompt_size();
}

bool Running::is_at_checkpoint() const {
  return std::binary_search(checkpoints_.begin(), checkpoints_.end(), computed_);
}

std::int64_t Running::tokens_left() const {
  const std::int64_t most = accepted_.request.max_tokens;
  return most < 0 ? std::numeric_limits<std::int64_t>::max() : most - usage_.generated_tokens;
}

std::span<const std::uint32_t> Running::allowed(const ModelSlots& slots) {
  if (!is_constrained()) return {};
  constexpr std::size_t kBits = 32;
  const auto vocabulary = static_cast<std::size_t>(slots.vocabulary());
  const std::span<const std::uint32_t> given = accepted_.request.constraint->allowed();
  mask_.assign((vocabulary + kBits - 1) / kBits, 0);
  std::copy_n(given.begin(), std::min(given.size(), mask_.size()), mask_.begin());
  if (vocabulary % kBits != 0) mask_.back() &= (1U << vocabulary % kBits) - 1;
  if (std::all_of(mask_.begin(), mask_.end(), [](std::uint32_t word) { return word == 0; })) {
    throw Error("Engine", "constraint", "a token that is allowed", "none");
  }
  return mask_;
}

std::int32_t Running::choose(const ModelSlots& slots) {
  if (!chosen_) chosen_ = slots.choose(sequence_, accepted_.request.sampling, allowed(slots));
  return *chosen_;
}

std::int64_t Running::room(std::int64_t context) const {
  return std::min(context - usage_.prompt_tokens - usage_.generated_tokens, tokens_left());
}

void Running::judge(std::int64_t drafts, std::int64_t accepted, std::int64_t sequences,
                    const decode::RoundCosts& costs) {
  drafter_->judge(accepted, sequences, costs);
  usage_.draft_tokens += drafts;
  usage_.accepted_tokens += accepted;
}

void Running::take(std::int32_t token, bool is_end, std::int64_t context) {
  chosen_.reset();
  if (!first_token_) {
    first_token_ = Clock::now();
    usage_.prompt_seconds = seconds_between(started_, *first_token_);
  }
  if (is_end && !accepted_.request.ignore_end) return finish(FinishReason::kEndToken);
  if (accepted_.request.logprobs) add_logprobs(token);
  if (accepted_.request.constraint != nullptr) accepted_.request.constraint->accept(token);
  if (drafter_) drafter_->add(std::span(&token, 1));
  output_.tokens.push_back(token);
  ++usage_.generated_tokens;
  if (decoder_) add_text(decoder_->push(token));
  if (finished()) return;
  const auto length = usage_.prompt_tokens + usage_.generated_tokens;
  if (tokens_left() <= 0 || length >= context) finish(FinishReason::kLength);
}

void Running::add_text(const std::string& text) {
  output_.text += stop_.push(text);
  if (!stop_.stopped()) return;
  output_.stop = stop_.stop();
  finish(FinishReason::kStop);
}

void Running::add_logprobs(std::int32_t token) {
  TokenLogprobs logprobs;
  logprobs.chosen = {token, decode::logprob(sequence_.logits(), token)};
  const auto count = static_cast<std::size_t>(*accepted_.request.logprobs);
  for (const decode::TokenLogprob& top : decode::top_logprobs(sequence_.logits(), count)) {
    logprobs.likeliest.push_back({top.token, top.logprob});
  }
  output_.logprobs.push_back(std::move(logprobs));
}

void Running::finish(FinishReason reason, const std::string& error) {
  if (finished()) return;
  if (decoder_ && reason != FinishReason::kStop) {
    output_.text += stop_.push(decoder_->finish());
    output_.text += stop_.finish();
  }
  output_.finish = reason;
  output_.error = error;
}

void Running::report() {
  if (reported_finish_ || (output_.tokens.empty() && output_.text.empty() && !finished())) return;
  if (first_token_) usage_.generation_seconds = seconds_between(*first_token_, Clock::now());
  output_.usage = usage_;
  const Output output = std::exchange(output_, {});
  output_.finish = output.finish;
  reported_finish_ = finished();
  try {
    accepted_.on_output(output);
  } catch (...) {
    reported_finish_ = true;
    finish(FinishReason::kCancelled);
  }
}

}  // namespace thalweg::engine
