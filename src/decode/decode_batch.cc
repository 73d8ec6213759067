// Model::decode: token after token of a batch, on the host step by step, on a device by a loop that is a step ahead.

#include <algorithm>
#include <limits>

#include "decode/decode_loop.h"
#include "decode/model_impl.h"
#include "decode/sampler.h"
#include "thalweg/error.h"

namespace thalweg {
namespace {

using AllowedOf = Model::Impl::AllowedOf;
using OnTokens = Model::Impl::OnTokens;
using OnLogits = Model::Impl::OnLogits;

// What both ways of decoding share: which sequences go on, with which token.
class Decoding {
 public:
  Decoding(Model::Impl& model, std::vector<Sequence::Impl*> sequences, std::span<const Sampling> sampling,
           const AllowedOf& allowed, const OnTokens& on_tokens, const OnLogits& on_logits, bool ignore_end)
      : model_(model),
        sequences_(std::move(sequences)),
        sampling_(sampling),
        allowed_(allowed),
        on_tokens_(on_tokens),
        on_logits_(on_logits),
        ignore_end_(ignore_end),
        reasons_(sequences_.size(), StopReason::kLength),
        tokens_(sequences_.size(), -1) {
    for (std::size_t i = 0; i < sequences_.size(); ++i) active_.push_back(i);
  }

  bool any() const { return !active_.empty(); }
  const std::vector<std::size_t>& active() const { return active_; }
  std::span<const StopReason> reasons() const { return reasons_; }
  Sequence::Impl& sequence(std::size_t i) const { return *sequences_[i]; }
  const Sampling& sampling(std::size_t i) const { return sampling_[i]; }
  std::int32_t token(std::size_t i) const { return tokens_[i]; }
  bool constrained() const { return static_cast<bool>(allowed_); }
  decode::TokenMask allowed(std::size_t i) const { return allowed_ ? allowed_(i) : decode::TokenMask(); }

  bool full(std::size_t i) const { return static_cast<std::int64_t>(sequences_[i]->tokens.size()) >= model_.context; }

  // Whether a sequence ends at this token.
  bool is_end(std::int32_t token) const {
    const std::vector<std::int32_t>& ends = model_.config.end_tokens;
    return !ignore_end_ && std::find(ends.begin(), ends.end(), token) != ends.end();
  }

  // Takes a sequence's next token; false if the sequence ends instead.
  bool take(std::size_t i, std::int32_t token) {
    const bool ends = is_end(token);
    tokens_[i] = ends || full(i) ? -1 : token;
    if (tokens_[i] >= 0) return true;
    reasons_[i] = ends ? StopReason::kEndToken : StopReason::kContext;
    return false;
  }

  // Drops the sequences for which `take_next(i)` is false.
  template <class TakeNext>
  void next(const TakeNext& take_next) {
    std::erase_if(active_, [&](std::size_t i) { return !take_next(i); });
  }

  // Reports the tokens; false to stop after them.
  bool report() {
    if (on_tokens_ && !on_tokens_(tokens_)) {
      for (const std::size_t i : active_) reasons_[i] = StopReason::kCaller;
      return false;
    }
    return true;
  }
  bool ignores_end() const { return ignore_end_; }
  bool wants_logits() const { return static_cast<bool>(on_logits_); }
  void report_logits(std::size_t i, std::span<const float> logits) const { on_logits_(i, tokens_[i], logits); }

 private:
  Model::Impl& model_;
  std::vector<Sequence::Impl*> sequences_;
  std::span<const Sampling> sampling_;
  const AllowedOf& allowed_;
  const OnTokens& on_tokens_;
  const OnLogits& on_logits_;
  bool ignore_end_;
  std::vector<std::size_t> active_;
  std::vector<StopReason> reasons_;
  std::vector<std::int32_t> tokens_;  // of the step; -1: the sequence has ended
};

bool take_sampled(Decoding& decoding, std::size_t i) {
  return decoding.take(i, decoding.sequence(i).choose(decoding.sampling(i), decoding.allowed(i)));
}

void decode_on_host(Model::Impl& model, Decoding& decoding, std::span<Sequence* const> handles,
                    std::int64_t max_tokens) {
  for (std::int64_t step = 0; step < max_tokens; ++step) {
    decoding.next([&](std::size_t i) { return take_sampled(decoding, i); });
    if (!decoding.any()) return;
    std::vector<SequenceInput> batch;
    std::vector<std::int32_t> tokens;
    for (const std::size_t i : decoding.active()) tokens.push_back(decoding.token(i));
    for (const std::size_t i : decoding.active()) {
      if (decoding.wants_logits()) decoding.report_logits(i, decoding.sequence(i).read_logits());
      batch.push_back({handles[i], std::span(tokens).subspan(batch.size(), 1)});
    }
    const bool goes_on = decoding.report();
    model.run(batch, decode::LogitsOf::kLast, {}, {});
    if (!goes_on) return;
  }
}

// One sequence with drafts: of each run the tokens are reported that turned out to be right.
class DraftDecoding {
 public:
  DraftDecoding(Model::Impl& model, Decoding& decoding, Sequence* handle)
      : model_(model),
        decoding_(decoding),
        handle_(handle),
        sequence_(decoding.sequence(0)),
        on_device_(!decoding.wants_logits() && model.can_choose(decoding.sampling(0))),
        drafter_(model.draft, model.options.draft_max, sequence_.tokens) {}

  void run(std::int64_t max_tokens) {
    std::int64_t left = max_tokens;
    while (left > 0) {
      decoding_.next([&](std::size_t i) { return take_sampled(decoding_, i); });
      if (!decoding_.any()) return;
      if (decoding_.wants_logits()) decoding_.report_logits(0, sequence_.read_logits());
      const bool goes_on = decoding_.report();
      --left;
      verify(decoding_.token(0), goes_on ? left : 0);
      if (!goes_on || !report_accepted(left)) return;
    }
  }

 private:
  // Runs the token with at most `most` drafts.
  void verify(std::int32_t token, std::int64_t most) {
    drafter_.add(std::span(&token, 1));
    const auto length = static_cast<std::int64_t>(sequence_.tokens.size()) + 1;
    const Model::Impl::Drafted drafted{&sequence_, token, std::min(most, model_.context - length), &drafter_};
    model_.make_drafts(std::span(&drafted, 1));
    std::vector<std::int32_t> tokens = {token};
    tokens.insert(tokens.end(), drafter_.drafts().begin(), drafter_.drafts().end());
    accepted_.clear();
    logits_.clear();
    const SequenceInput input{handle_, tokens};
    const std::span<const Sampling> sampling(&decoding_.sampling(0), on_device_ ? 1 : 0);
    model_.run_drafts(std::span(&input, 1), sampling, [&](std::size_t, std::int32_t draft) {
      const bool right = !decoding_.is_end(draft) && sequence_.choose(decoding_.sampling(0)) == draft;
      if (right) accepted_.push_back(draft);
      if (right && !on_device_) logits_.push_back(sequence_.logits);
      return right;
    });
    drafter_.judge(static_cast<std::int64_t>(accepted_.size()), 1, model_.round_costs);
    drafter_.add(accepted_);
  }

  // False if the caller stops, at which the tokens after the last reported one are taken back.
  bool report_accepted(std::int64_t& left) {
    for (std::size_t n = 0; n < accepted_.size(); ++n) {
      decoding_.take(0, accepted_[n]);
      if (decoding_.wants_logits()) decoding_.report_logits(0, logits_[n]);
      --left;
      if (decoding_.report()) continue;
      const auto rest = static_cast<std::int64_t>(accepted_.size() - n - 1);
      if (rest > 0 && on_device_) sequence_.take_back(rest, static_cast<std::int64_t>(n) + 1);
      if (rest > 0 && !on_device_) sequence_.take_back(rest, std::move(logits_[n + 1]));
      return false;
    }
    return true;
  }

  Model::Impl& model_;
  Decoding& decoding_;
  Sequence* handle_;
  Sequence::Impl& sequence_;
  bool on_device_;  // tokens are chosen where the logits are
  decode::Drafter drafter_;
  std::vector<std::int32_t> accepted_;
  std::vector<std::vector<float>> logits_;  // that they were chosen from
};

class DeviceDecoding {
 public:
  DeviceDecoding(Model::Impl& model, Decoding& decoding) : model_(model), decoding_(decoding), loop_(*model.loop) {}

  void run(std::int64_t max_tokens) {
    decoding_.next([&](std::size_t i) { return take_sampled(decoding_, i); });
    if (!decoding_.any()) return;
    start();
    for (std::int64_t step = 0;; ++step) {
      // The tokens are running; those that they lead to are not known yet.
      if (decoding_.wants_logits()) report_logits(step);
      const bool goes_on = decoding_.report();
      for (const std::size_t i : decoding_.active()) decoding_.sequence(i).tokens.push_back(decoding_.token(i));
      const bool last = !goes_on || step + 1 == max_tokens;
      const bool has_room = std::none_of(decoding_.active().begin(), decoding_.active().end(),
                                         [&](std::size_t i) { return decoding_.full(i); });
      const bool goes_on_here = !last && has_room;
      if (decoding_.constrained()) {
        choose();
      } else if (goes_on_here) {
        loop_.launch();
      }
      const std::span<const std::int32_t> chosen = loop_.read();
      decoding_.next([&](std::size_t i) {
        const std::int32_t next = chosen[row_of(i)];
        if (!last && take(i, next)) return true;
        finish(i, next);
        return false;
      });
      if (!decoding_.any()) return;
      if (!goes_on_here) {
        start();
      } else if (decoding_.constrained()) {
        loop_.launch();
      }
    }
  }

 private:
  // By what may follow the tokens that are running and have been reported.
  void choose() {
    loop_.choose([&](std::size_t row) {
      const std::vector<std::size_t>& active = decoding_.active();
      const bool runs = std::find(active.begin(), active.end(), rows_[row]) != active.end();
      return runs ? decoding_.allowed(rows_[row]) : decode::TokenMask();
    });
  }

  std::size_t row_of(std::size_t i) const {
    return static_cast<std::size_t>(std::find(rows_.begin(), rows_.end(), i) - rows_.begin());
  }

  // Begins anew with the sequences that go on.
  void start() {
    rows_ = decoding_.active();
    std::vector<decode::LoopInput> inputs;
    for (const std::size_t i : rows_) {
      Sequence::Impl& sequence = decoding_.sequence(i);
      sequence.settle();  // drafts of an earlier round
      model_.pool->set_length(sequence.slot, static_cast<std::int64_t>(sequence.tokens.size()));
      inputs.push_back({sequence.slot, sequence.tokens, decoding_.token(i), decoding_.sampling(i)});
    }
    loop_.start(inputs, decoding_.ignores_end(), decoding_.constrained());
    loop_.launch();
  }

  bool take(std::size_t i, std::int32_t token) {
    if (token < 0) throw Error("sample", "logits", "numbers", "NaN or infinity");
    return decoding_.take(i, token);
  }

  // The logits stay where they are: of many sequences they would take longer to read than a step does.
  void finish(std::size_t i, std::int32_t next) {
    Sequence::Impl& sequence = decoding_.sequence(i);
    model_.pool->set_length(sequence.slot, static_cast<std::int64_t>(sequence.tokens.size()));
    sequence.set_logits({});
    model_.pool->mtp_rows(sequence.slot) = {.tokens = {}, .lost = model_.pool->has_mtp()};
    model_.kept_logits->keep(sequence.slot, loop_.logits(row_of(i)));
    sequence.away = true;
    if (next >= 0) sequence.chosen = {decoding_.sampling(i), next};
  }

  // Those that the running tokens were chosen from.
  void report_logits(std::int64_t step) {
    for (const std::size_t i : decoding_.active()) {
      Sequence::Impl& sequence = decoding_.sequence(i);
      if (step > 0) sequence.set_logits({});
      if (step > 0) loop_.read_logits(row_of(i), sequence.logits);
      decoding_.report_logits(i, sequence.read_logits());
    }
  }

  Model::Impl& model_;
  Decoding& decoding_;
  decode::DecodeLoop& loop_;
  std::vector<std::size_t> rows_;  // sequences by row of the loop
};

}  // namespace

std::vector<StopReason> Model::decode(std::span<Sequence* const> sequences, std::span<const Sampling> sampling,
                                      std::int64_t max_tokens, const OnTokens& on_tokens, const OnLogits& on_logits,
                                      bool ignore_end) {
  return impl_->decode(sequences, sampling, max_tokens, {}, on_tokens, on_logits, ignore_end);
}

std::vector<StopReason> Model::Impl::decode(std::span<Sequence* const> handles, std::span<const Sampling> sampling,
                                            std::int64_t max_tokens, const AllowedOf& allowed,
                                            const OnTokens& on_tokens, const OnLogits& on_logits, bool ignore_end) {
  if (sampling.size() != handles.size()) {
    throw Error("decode", "sampling", "one for each of " + std::to_string(handles.size()) + " sequences",
                std::to_string(sampling.size()));
  }
  for (const Sampling& settings : sampling) decode::check_sampling(settings);
  std::vector<Sequence::Impl*> states = sequences_of(handles, "decode");
  for (const Sequence::Impl* state : states) {
    if (!state->has_logits()) throw Error("decode", "sequences", "at least one token in each", "none");
  }
  Decoding decoding(*this, states, sampling, allowed, on_tokens, on_logits, ignore_end);
  if (max_tokens > 0 && draft != DraftMode::kOff && handles.size() == 1 && !allowed) {
    DraftDecoding(*this, decoding, handles.front()).run(max_tokens);
  } else if (max_tokens > 0 && loop == nullptr) {
    decode_on_host(*this, decoding, handles, max_tokens);
  } else if (max_tokens > 0) {
    for (Sequence::Impl* state : states) state->damaged = true;
    DeviceDecoding(*this, decoding).run(max_tokens);
    for (Sequence::Impl* state : states) state->damaged = false;
  }
  return {decoding.reasons().begin(), decoding.reasons().end()};
}

}  // namespace thalweg
