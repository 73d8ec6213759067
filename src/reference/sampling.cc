#include "reference/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/sampling.h"
#include "core/sequences.h"

namespace thalweg::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// All tokens, likelier ones first, ties to the lower id.
std::vector<std::size_t> falling_order(const std::vector<float>& logits) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  return order;
}

std::vector<float> row_of(const ConstTensor& logits, std::int64_t n) {
  const auto* row = static_cast<const float*>(logits.row(n));
  return {row, row + logits.dim(1)};
}

std::vector<float> penalized_row(const SampleTokensArgs& args, std::int64_t n, const Sampling& sampling) {
  const std::vector<float> raw = row_of(args.logits, n);
  std::vector<float> logits = raw;
  const Array history = read(args.history);
  if (history.size() == 0) return logits;
  const auto length = static_cast<std::int64_t>(read(args.lengths)(n));
  const std::int64_t first = sampling.repeat_last < 0 ? 0 : std::max<std::int64_t>(0, length - sampling.repeat_last);
  for (std::int64_t i = first; i < length; ++i) {
    const double token = history(state_slot(args.slots, n), i);
    if (token < 0 || token >= static_cast<double>(raw.size())) continue;
    const auto at = static_cast<std::size_t>(token);
    logits[at] = raw[at] > 0 ? raw[at] / sampling.repeat_penalty : raw[at] * sampling.repeat_penalty;
  }
  return logits;
}

void drop_forbidden(const SampleTokensArgs& args, std::int64_t n, std::vector<float>& logits) {
  const Array words = read(args.allowed);
  if (words.size() == 0) return;
  for (std::size_t token = 0; token < logits.size(); ++token) {
    const auto word = static_cast<std::int64_t>(words(n, static_cast<std::int64_t>(token / 32)));
    if ((word >> token % 32 & 1) == 0) logits[token] = -std::numeric_limits<float>::infinity();
  }
}

// What rounding by the contract can move a sum of the row's weights by, the likeliest token's being 1: each weight half
// of 2^-40, sums in f64 each addition.
double rounding_of(double total, std::size_t count) {
  return static_cast<double>(count) * (0x1p-41 + total * 0x1p-53) + total * 0x1p-46;
}

}  // namespace

Choice sample_row(const SampleTokensArgs& args, std::int64_t n) {
  if (state_slot(args.slots, n) < 0) return {-1, kInfinity};
  const Sampling sampling = sampling_of(args, n);
  std::vector<float> logits = penalized_row(args, n, sampling);
  drop_forbidden(args, n, logits);
  const std::vector<std::size_t> order = falling_order(logits);
  if (sampling.temperature == 0.0F) return {static_cast<std::int32_t>(order[0]), kInfinity};

  std::vector<double> weights;  // in falling order
  for (const std::size_t token : order) {
    const double below = static_cast<double>(logits[token]) - static_cast<double>(logits[order[0]]);
    weights.push_back(std::exp(below / static_cast<double>(sampling.temperature)));
  }
  const auto sum_of = [&](std::size_t count) {
    return std::accumulate(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(count), 0.0);
  };
  const double rounding = rounding_of(sum_of(weights.size()), weights.size());
  double margin = kInfinity;
  const auto stay_clear = [&](double distance, double of) { margin = std::min(margin, std::abs(distance) / of); };

  std::size_t kept = weights.size();
  if (sampling.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(sampling.top_k));
  if (sampling.top_p < 1.0F) {
    const double wanted = static_cast<double>(sampling.top_p) * sum_of(kept);
    std::size_t count = 0;
    double sum = 0.0;
    while (count < kept && sum < wanted) {
      if (count > 0) stay_clear(sum - wanted, rounding);
      sum += weights[count++];
    }
    stay_clear(sum - wanted, rounding);
    kept = count;
  }
  const auto min_p = static_cast<double>(sampling.min_p);
  for (std::size_t i = 0; i < kept && min_p > 0.0; ++i) {
    if (weights[i] < 1.0) stay_clear(weights[i] - min_p, 1e-12 * weights[i]);  // a weight of 1 is exact
  }
  while (weights[kept - 1] < min_p) --kept;

  std::vector<std::pair<std::size_t, double>> by_id;
  for (std::size_t i = 0; i < kept; ++i) by_id.emplace_back(order[i], weights[i]);
  std::sort(by_id.begin(), by_id.end());
  const auto position = static_cast<std::uint64_t>(read(args.lengths)(n));
  const double drawn = draw(sampling.seed, position) * sum_of(kept);
  double sum = 0.0;
  for (const auto& [token, weight] : by_id) {
    const double before = sum;
    sum += weight;
    if (drawn >= sum && token != by_id.back().first) continue;
    if (token != by_id.front().first) stay_clear(drawn - before, rounding);
    if (token != by_id.back().first) stay_clear(sum - drawn, rounding);
    return {static_cast<std::int32_t>(token), margin};
  }
  return {};
}

Logprobs logprobs(const LogprobsArgs& args, Precision precision) {
  const std::int64_t rows = args.logits.dim(0);
  const std::int64_t count = args.top_tokens.defined() ? args.top_tokens.dim(1) : 0;
  const Array tokens = read(args.tokens);
  Logprobs result;
  if (args.tokens.defined()) result.logprob = Array({rows});
  if (count > 0) result.top_tokens = result.top_logprobs = Array({rows, count});
  for (std::int64_t n = 0; n < rows; ++n) {
    const bool absent = args.tokens.defined() && tokens(n) < 0;
    for (std::int64_t i = 0; absent && i < count; ++i) result.top_tokens(n, i) = -1.0;
    if (absent) continue;
    const std::vector<float> logits = row_of(args.logits, n);
    const std::vector<std::size_t> order = falling_order(logits);
    const double largest = logits[order[0]];
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
    const auto value = [&](std::size_t token) {
      return rounded(DType::kF32, static_cast<double>(logits[token]) - largest - std::log(sum), precision);
    };
    if (args.tokens.defined()) result.logprob(n) = value(static_cast<std::size_t>(tokens(n)));
    for (std::int64_t i = 0; i < count; ++i) {
      result.top_tokens(n, i) = static_cast<double>(order[static_cast<std::size_t>(i)]);
      result.top_logprobs(n, i) = value(order[static_cast<std::size_t>(i)]);
    }
  }
  return result;
}

Advanced advance(const AdvanceArgs& args) {
  const Array tokens = read(args.tokens);
  Advanced next{read(args.ids), read(args.positions), read(args.lengths), read(args.slots), Array({0})};
  if (args.history.defined()) next.history = read(args.history);
  for (std::int64_t n = 0; n < tokens.dim(0); ++n) {
    if (next.slots(n) < 0) continue;
    bool ends = tokens(n) == -1;
    for (std::int64_t i = 0; i < args.end_tokens.size(); ++i) ends |= tokens(n) == read(args.end_tokens)(i);
    if (ends) {
      next.slots(n) = -1;
      continue;
    }
    const auto slot = static_cast<std::int64_t>(next.slots(n));
    const auto length = static_cast<std::int64_t>(next.lengths(n));
    if (args.history.defined() && slot < next.history.dim(0) && length < next.history.dim(1)) {
      next.history(slot, length) = tokens(n);
    }
    next.ids(n) = tokens(n);
    next.positions(n) += 1;
    next.lengths(n) += 1;
  }
  return next;
}

}  // namespace thalweg::reference
