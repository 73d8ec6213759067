#include "decode/drafter.h"

#include <algorithm>
#include <cmath>

namespace thalweg::decode {
namespace {

constexpr std::int64_t kFirstLimit = 4;
constexpr double kNewest = 0.1;        // weight of a measurement among those before it
constexpr int kFirstRounds = 3;        // without drafts, the first ones being slow
constexpr int kRemeasure = 128;        // rounds with drafts, after which one without is due
constexpr double kMostTime = 2;        // of what was expected, that is believed of one round
constexpr double kLeastSlope = 0.2;    // of drafts' average cost, that one more adds
constexpr double kUnknownSlope = 0.5;  // the same before it is measured
constexpr double kForget = 0.97;       // of what is known about acceptance, by round
constexpr double kMostLoss = 0.02;     // of the time, that drafts may cost where they do not pay
constexpr double kUnknownDraft = 0.5;  // of a round, before the cost of a draft is measured
constexpr double kKnown = 10;          // drafts, after which acceptance is believed

void average(double& value, double newest, double weight = kNewest) {
  value = value == 0 ? newest : value + weight * (newest - value);
}

}  // namespace

void RoundCosts::add(std::int64_t sequences, std::int64_t drafts, double seconds, bool settled) {
  Plain& plain = plain_[sequences];
  if (drafts == 0) {
    if (!settled && plain.measured > 0) return;
    const bool first = plain.measured < kFirstRounds;
    if (first) plain.seconds = plain.measured == 0 ? seconds : std::min(plain.seconds, seconds);
    if (!first) average(plain.seconds, std::min(seconds, kMostTime * plain.seconds));
    ++plain.measured;
    plain.since = 0;
    return;
  }
  if (plain.measured == 0) return;
  ++plain.since;
  const auto count = static_cast<double>(drafts);
  if (rounds_ > 0) seconds = std::min(seconds, kMostTime * (plain.seconds + added(count)));
  const double more = std::max(0.01 * plain.seconds, seconds - plain.seconds);
  rounds_ = 1 + (1 - kNewest) * rounds_;
  const double weight = 1 / rounds_;
  average(drafts_, count, weight);
  average(added_, more, weight);
  average(squares_, count * count, weight);
  average(products_, count * more, weight);
}

void RoundCosts::add_making(std::int64_t drafts, double seconds) {
  if (drafts == 0) return;
  const double each = seconds / static_cast<double>(drafts);
  average(making_, making_ > 0 ? std::min(each, kMostTime * making_) : each);
}

double RoundCosts::plain(std::int64_t sequences) const {
  const auto found = plain_.find(sequences);
  return found == plain_.end() ? 0 : found->second.seconds;
}

bool RoundCosts::due(std::int64_t sequences) const {
  const auto found = plain_.find(sequences);
  return found == plain_.end() || found->second.measured < kFirstRounds || found->second.since >= kRemeasure;
}

double RoundCosts::added(double drafts) const {
  const double each = added_ / drafts_;
  const double spread = squares_ - drafts_ * drafts_;
  // Where all rounds have had about as many drafts, nothing is known of others. More are tried too late if they are
  // taken to cost as much as the first.
  const double unknown = drafts > drafts_ ? kUnknownSlope * each : each;
  const double slope = spread < 0.1 ? unknown : (products_ - drafts_ * added_) / spread;
  return added_ + std::clamp(slope, kLeastSlope * each, each) * (drafts - drafts_);
}

double RoundCosts::drafts(std::int64_t count, std::int64_t sequences) const {
  if (rounds_ == 0 || count == 0) return 0;
  const auto n = static_cast<double>(count);
  const auto among = static_cast<double>(sequences);
  return added(n * among) / among + n * making_;
}

Drafter::Drafter(DraftMode mode, int most, std::span<const std::int32_t> tokens)
    : mode_(mode), most_(most), limit_(std::min<std::int64_t>(most, kFirstLimit)) {
  lookup_.add(tokens);
}

void Drafter::Acceptance::add(double right_ones, double looked_at) {
  right = kForget * right + right_ones;
  looked = kForget * looked + looked_at;
}

void Drafter::add(std::span<const std::int32_t> tokens) {
  lookup_.add(tokens);
  for (const std::int32_t token : tokens) {
    if (guess_.empty()) return;
    const bool right = token == guess_.front();
    of_lookup_.add(right ? 1 : 0, 1);
    guess_.erase(guess_.begin(), right ? guess_.begin() + 1 : guess_.end());
  }
}

bool Drafter::prefers_lookup() {
  if (mode_ != DraftMode::kAuto) return false;
  lookup_.propose(static_cast<std::size_t>(most_), guess_);
  if (guess_.empty() || of_lookup_.rate() < of_layer_.rate()) return false;
  guess_.clear();
  return true;
}

std::int64_t Drafter::worthwhile(std::int64_t sequences, const RoundCosts& costs) const {
  if (costs.due(sequences)) return 0;
  const double round = costs.plain(sequences);
  const double token = round / static_cast<double>(sequences);
  const bool known = costs.drafts(1, sequences) > 0;
  const auto cost = [&](std::int64_t drafts) {
    return known ? costs.drafts(drafts, sequences) : kUnknownDraft * round * static_cast<double>(drafts);
  };
  const Acceptance& known_of = by_layer_ ? of_layer_ : of_lookup_;
  const double acceptance = known_of.rate();
  // The n-th draft gives a token with probability acceptance^n.
  std::int64_t count = 0;
  double chance = 1;
  double tokens = 1;
  double best = 1 / token;
  for (std::int64_t n = 1; n <= most_; ++n) {
    chance *= acceptance;
    tokens += chance;
    const double rate = tokens / (token + cost(n));
    if (rate > best) count = n;
    best = std::max(best, rate);
  }
  if (count > 0 && known_of.looked >= kKnown) return count;
  // Where none pays, or little is known, one is tried from time to time.
  count = std::max<std::int64_t>(count, 1);
  const double allowed = kMostLoss * spent_ + token;
  const double lost = spent_ - gained_;
  while (count > 0 && lost + cost(count) > allowed) --count;
  return count;
}

std::int64_t Drafter::wanted(std::int64_t room, std::int64_t sequences, const RoundCosts& costs, bool has_layer) {
  guess_.clear();
  by_layer_ = has_layer && !prefers_lookup();
  const std::int64_t most = std::min(room, mode_ == DraftMode::kAuto ? worthwhile(sequences, costs) : limit_);
  // How the text so far foretells the next tokens is learned without drafts too.
  if (mode_ == DraftMode::kAuto && most <= 0 && !by_layer_) lookup_.propose(static_cast<std::size_t>(most_), guess_);
  return std::max<std::int64_t>(0, most);
}

void Drafter::judge(std::int64_t accepted, std::int64_t sequences, const RoundCosts& costs) {
  const auto drafts = static_cast<std::int64_t>(drafts_.size());
  const double token = costs.plain(sequences) / static_cast<double>(sequences);
  spent_ += token + costs.drafts(drafts, sequences);
  gained_ += static_cast<double>(1 + accepted) * token;
  if (drafts == 0) return;
  Acceptance& acceptance = by_layer_ ? of_layer_ : of_lookup_;
  acceptance.add(static_cast<double>(accepted), static_cast<double>(std::min(drafts, accepted + 1)));
  limit_ = accepted == drafts ? std::min(most_, std::max(limit_, 2 * drafts)) : std::max<std::int64_t>(1, accepted + 1);
}

}  // namespace thalweg::decode
