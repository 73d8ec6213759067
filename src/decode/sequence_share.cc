#include "decode/sequence_share.h"

#include <algorithm>
#include <vector>

namespace thalweg::decode {
namespace {

// Of a rank: with fewer, what ranks wait for each other is more than what they save.
constexpr std::int64_t kLeastTokens = 256;
// Shares end with whole chunks of the gated delta rule.
constexpr std::int64_t kRound = 64;

// Multiplications by weights that a token needs.
double products_of_token(const ModelConfig& c) {
  const auto hidden = static_cast<double>(c.hidden);
  const double attention = hidden * c.head_dim * (3.0 * c.heads + 2.0 * c.kv_heads);
  const double gated_delta =
      hidden * static_cast<double>(c.conv_channels() + 2 * c.value_channels() + std::int64_t{2} * c.value_heads);
  double all = 0;
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    all += c.layers[i] == LayerKind::kAttention ? attention : gated_delta;
    const std::int64_t inner = c.sparse[i] ? c.experts_used * c.expert_hidden + c.shared_hidden : c.dense_hidden;
    all += 3.0 * hidden * static_cast<double>(inner);
  }
  return all;
}

double products_of_key(const ModelConfig& c) {
  const auto layers = std::count(c.layers.begin(), c.layers.end(), LayerKind::kAttention);
  return 2.0 * static_cast<double>(layers) * c.heads * c.head_dim;
}

}  // namespace

bool SequenceShare::takes(const RankGroup* group, std::int64_t tokens) {
  return group != nullptr && group->replicas() && tokens >= kLeastTokens * group->count();
}

SequenceShare::SequenceShare(const ModelConfig& config, RankGroup& group, StatePool& pool, int slot, std::int64_t seen,
                             std::int64_t tokens)
    : group_(group),
      pool_(pool),
      slot_(slot),
      seen_(seen),
      tokens_(tokens),
      cost_of_key_(products_of_key(config) / products_of_token(config)) {}

// Of the first tokens, each of which sees those before it.
double SequenceShare::cost(double tokens) const {
  return tokens + cost_of_key_ * tokens * (static_cast<double>(seen_) + tokens / 2);
}

// Where a rank's share begins, so that all cost the same.
std::int64_t SequenceShare::cut(int rank) const {
  if (rank == 0) return 0;
  if (rank == group_.count()) return tokens_;
  const double wanted = cost(static_cast<double>(tokens_)) * rank / group_.count();
  std::int64_t low = 0;
  std::int64_t high = tokens_ / kRound;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (cost(static_cast<double>(middle * kRound)) < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  // Each has some.
  const std::int64_t most = (tokens_ - 1) / kRound - (group_.count() - 1 - rank);
  return std::clamp<std::int64_t>(low, rank, most) * kRound;
}

std::int64_t SequenceShare::longest() const {
  std::int64_t most = 0;
  for (int rank = 0; rank < group_.count(); ++rank) most = std::max(most, cut(rank + 1) - cut(rank));
  return most;
}

void SequenceShare::exchange_states(std::size_t layer, int from, int to) const {
  const std::vector<MemorySegment> segments = pool_.state_segments(slot_, layer);
  if (group_.rank() == from) group_.give(to, segments);
  if (group_.rank() == to) group_.take(from, segments);
}

void SequenceShare::take_states(std::size_t layer) const {
  if (group_.rank() > 0) exchange_states(layer, group_.rank() - 1, group_.rank());
}

void SequenceShare::give_states(std::size_t layer) const {
  if (!is_last()) exchange_states(layer, group_.rank(), group_.rank() + 1);
}

void SequenceShare::pass_cache(std::size_t layer) const {
  if (group_.rank() > 0) group_.take(group_.rank() - 1, pool_.cache_segments(slot_, layer, seen_, begin()));
  if (!is_last()) group_.give(group_.rank() + 1, pool_.cache_segments(slot_, layer, seen_, end()));
}

void SequenceShare::finish(const Tensor& logits) const {
  // What the ranks from `rank` on have that those before it have not.
  const auto segments_from = [&](int rank) {
    std::vector<MemorySegment> all = pool_.cache_segments(slot_, seen_ + cut(rank), tokens_ - cut(rank));
    for (std::size_t layer = 0; layer < pool_.layers(); ++layer) {
      for (const MemorySegment& segment : pool_.state_segments(slot_, layer)) all.push_back(segment);
    }
    if (logits.defined()) {
      all.push_back(
          {static_cast<std::byte*>(logits.data), static_cast<std::size_t>(bytes_of(logits.dtype, logits.size()))});
    }
    return all;
  };
  if (!is_last()) group_.take(group_.rank() + 1, segments_from(group_.rank() + 1));
  if (group_.rank() > 0) group_.give(group_.rank() - 1, segments_from(group_.rank()));
}

}  // namespace thalweg::decode
