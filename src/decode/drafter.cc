#include "decode/drafter.h"

#include <algorithm>
#include <cmath>

namespace thalweg::decode {
namespace {

constexpr std::int64_t kFirstLimit = 4;
constexpr double kNewest = 0.1;        // weight of a measurement among those before it
constexpr double kForget = 0.97;       // of what is known about acceptance, by round
constexpr double kMostLoss = 0.02;     // of the time, that drafts may cost where they do not pay
constexpr double kUnknownDraft = 0.5;  // of a round, before the cost of a draft is measured

void average(double& value, double newest) { value = value == 0 ? newest : value + kNewest * (newest - value); }

}  // namespace

void RoundCosts::add(std::int64_t sequences, std::int64_t drafts, double seconds) {
  if (drafts == 0) {
    average(plain_[sequences], seconds);
  } else if (const double without = plain(sequences); without > 0) {
    average(draft_, std::max(0.01 * without, seconds - without) / static_cast<double>(drafts));
  }
}

void RoundCosts::add_making(std::int64_t drafts, double seconds) {
  if (drafts > 0) average(making_, seconds / static_cast<double>(drafts));
}

double RoundCosts::plain(std::int64_t sequences) const {
  const auto found = plain_.find(sequences);
  return found == plain_.end() ? 0 : found->second;
}

Drafter::Drafter(DraftMode mode, int most, std::span<const std::int32_t> tokens)
    : mode_(mode), most_(most), limit_(std::min<std::int64_t>(most, kFirstLimit)) {
  lookup_.add(tokens);
}

std::int64_t Drafter::worthwhile(std::int64_t sequences, const RoundCosts& costs) const {
  const double round = costs.plain(sequences);
  if (round == 0) return 0;  // this one measures it
  const double token = round / static_cast<double>(sequences);
  const double draft = costs.draft() > 0 ? costs.draft() : kUnknownDraft * round;
  const double acceptance = right_ / looked_;
  // The n-th draft gives a token with probability acceptance^n.
  std::int64_t count = 0;
  for (double chance = acceptance; count < most_ && chance * token > draft; chance *= acceptance) ++count;
  // Where none pays, one is tried from time to time.
  count = std::max<std::int64_t>(count, 1);
  const double allowed = kMostLoss * spent_ + token;
  const double lost = spent_ - gained_;
  while (count > 0 && lost + static_cast<double>(count) * draft > allowed) --count;
  return count;
}

std::int64_t Drafter::wanted(std::int64_t room, std::int64_t sequences, const RoundCosts& costs) const {
  const std::int64_t most = std::min(room, mode_ == DraftMode::kAuto ? worthwhile(sequences, costs) : limit_);
  return std::max<std::int64_t>(0, most);
}

void Drafter::judge(std::int64_t accepted, std::int64_t sequences, const RoundCosts& costs) {
  const auto drafts = static_cast<std::int64_t>(drafts_.size());
  const double token = costs.plain(sequences) / static_cast<double>(sequences);
  spent_ += token + static_cast<double>(drafts) * costs.draft();
  gained_ += static_cast<double>(1 + accepted) * token;
  if (drafts == 0) return;
  right_ = kForget * right_ + static_cast<double>(accepted);
  looked_ = kForget * looked_ + static_cast<double>(std::min(drafts, accepted + 1));
  limit_ = accepted == drafts ? std::min(most_, std::max(limit_, 2 * drafts)) : std::max<std::int64_t>(1, accepted + 1);
}

}  // namespace thalweg::decode
