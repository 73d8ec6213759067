#include "decode/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "thalweg/error.h"

namespace thalweg::decode {
namespace {

struct Candidate {
  std::int32_t token;
  float logit;
  double weight;  // exp((logit - largest) / temperature)
};

// Likelier first; ties to the lower id.
bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// A number in 0..1 (1 excluded) that depends on seed and position only.
double draw(std::uint64_t seed, std::uint64_t position) {
  std::uint64_t bits = seed * 0xD1342543DE82EF95U + (position + 1) * 0x9E3779B97F4A7C15U;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EBU;
  bits ^= bits >> 31;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

std::vector<float> penalized(std::span<const float> logits, std::span<const std::int32_t> tokens,
                             const Sampling& sampling) {
  std::vector<float> values(logits.begin(), logits.end());
  if (sampling.repeat_penalty == 1.0F || sampling.repeat_last == 0) return values;
  if (sampling.repeat_last > 0) {
    tokens = tokens.last(std::min(tokens.size(), static_cast<std::size_t>(sampling.repeat_last)));
  }
  // From the raw logits, so that a token that occurs twice is penalized once.
  for (std::int32_t token : tokens) {
    const auto i = static_cast<std::size_t>(token);
    values[i] = logits[i] > 0 ? logits[i] / sampling.repeat_penalty : logits[i] * sampling.repeat_penalty;
  }
  return values;
}

std::size_t check_logits(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      throw Error("sample", "logits", "numbers", std::to_string(logits[i]) + " for token " + std::to_string(i));
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (logits.empty() || std::isinf(logits[best])) throw Error("sample", "logits", "a number", "none");
  return best;
}

// Keeps the k likeliest, sorted.
void keep_likeliest(std::vector<Candidate>& candidates, std::size_t k) {
  k = std::min(k, candidates.size());
  const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(k);
  std::partial_sort(candidates.begin(), end, candidates.end(), likelier);
  candidates.resize(k);
}

void keep_probable(std::vector<Candidate>& candidates, double fraction) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  // A few candidates usually suffice: sorts no more than needed.
  std::size_t sorted = 0;
  std::size_t next = 64;
  double sum = 0;
  while (sorted < candidates.size()) {
    const std::size_t end = std::min(next, candidates.size());
    std::partial_sort(candidates.begin() + static_cast<std::ptrdiff_t>(sorted),
                      candidates.begin() + static_cast<std::ptrdiff_t>(end), candidates.end(), likelier);
    for (; sorted < end; ++sorted) {
      sum += candidates[sorted].weight;
      if (sum < fraction * total) continue;
      candidates.resize(sorted + 1);
      return;
    }
    next *= 8;
  }
}

}  // namespace

void check_sampling(const Sampling& s) {
  const auto require = [](bool condition, std::string_view what, std::string_view expected, const std::string& given) {
    if (!condition) throw Error("sampling", what, expected, given);
  };
  require(std::isfinite(s.temperature) && s.temperature >= 0, "temperature", "0 or more",
          std::to_string(s.temperature));
  require(s.top_k >= 0, "top_k", "0 or more", std::to_string(s.top_k));
  require(s.top_p > 0 && s.top_p <= 1, "top_p", "a number above 0, at most 1", std::to_string(s.top_p));
  require(s.min_p >= 0 && s.min_p <= 1, "min_p", "a number from 0 to 1", std::to_string(s.min_p));
  require(std::isfinite(s.repeat_penalty) && s.repeat_penalty > 0, "repeat_penalty", "a positive number",
          std::to_string(s.repeat_penalty));
  require(s.repeat_last >= -1, "repeat_last", "-1 or more", std::to_string(s.repeat_last));
}

std::int32_t sample_token(std::span<const float> raw, std::span<const std::int32_t> tokens, const Sampling& sampling) {
  check_sampling(sampling);
  check_logits(raw);
  const std::vector<float> logits = penalized(raw, tokens, sampling);
  const std::size_t best = check_logits(logits);
  if (sampling.temperature == 0.0F) return static_cast<std::int32_t>(best);

  const double largest = logits[best];
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp((logits[i] - largest) / static_cast<double>(sampling.temperature));
    if (weight > 0) candidates.push_back({static_cast<std::int32_t>(i), logits[i], weight});
  }
  if (sampling.top_k > 0) keep_likeliest(candidates, static_cast<std::size_t>(sampling.top_k));
  if (sampling.top_p < 1) keep_probable(candidates, static_cast<double>(sampling.top_p));
  // The largest weight is 1, so that min_p compares with the weights.
  std::erase_if(candidates, [&](const Candidate& c) { return c.weight < static_cast<double>(sampling.min_p); });

  // In the order of ids, so that settings that keep the same tokens draw the same one.
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  double left = draw(sampling.seed, tokens.size()) * total;
  for (const Candidate& candidate : candidates) {
    left -= candidate.weight;
    if (left < 0) return candidate.token;
  }
  return candidates.back().token;
}

}  // namespace thalweg::decode
