#include "core/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "core/sequences.h"
#include "thalweg/error.h"

namespace thalweg {
namespace {

template <class T>
void read_setting(const ConstTensor& tensor, std::int64_t n, T& setting) {
  if (tensor.defined()) setting = static_cast<const T*>(tensor.data)[n];
}

}  // namespace

void check_sampling(const Sampling& s, std::string_view operation) {
  const auto require = [&](bool condition, std::string_view what, std::string_view expected, auto given) {
    if (!condition) throw Error(operation, what, expected, std::to_string(given));
  };
  require(std::isfinite(s.temperature) && s.temperature >= 0, "temperature", "0 or more", s.temperature);
  require(s.top_k >= 0, "top_k", "0 or more", s.top_k);
  require(s.top_p > 0 && s.top_p <= 1, "top_p", "a number above 0, at most 1", s.top_p);
  require(s.min_p >= 0 && s.min_p <= 1, "min_p", "a number from 0 to 1", s.min_p);
  require(std::isfinite(s.repeat_penalty) && s.repeat_penalty > 0, "repeat_penalty", "a positive number",
          s.repeat_penalty);
  require(s.repeat_last >= -1, "repeat_last", "-1 or more", s.repeat_last);
}

double draw(std::uint64_t seed, std::uint64_t position) {
  std::uint64_t bits = seed * 0xD1342543DE82EF95U + (position + 1) * 0x9E3779B97F4A7C15U;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EBU;
  bits ^= bits >> 31;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

Sampling sampling_of(const SampleTokensArgs& args, std::int64_t n) {
  Sampling sampling;
  read_setting(args.temperature, n, sampling.temperature);
  read_setting(args.top_k, n, sampling.top_k);
  read_setting(args.top_p, n, sampling.top_p);
  read_setting(args.min_p, n, sampling.min_p);
  read_setting(args.repeat_penalty, n, sampling.repeat_penalty);
  read_setting(args.repeat_last, n, sampling.repeat_last);
  if (args.seed.defined()) {
    const auto* words = static_cast<const std::uint32_t*>(args.seed.row(n));
    sampling.seed = words[0] | std::uint64_t{words[1]} << 32;
  }
  return sampling;
}

std::span<const std::int32_t> penalized_tokens(const SampleTokensArgs& args, std::int64_t n, const Sampling& sampling) {
  if (!args.history.defined() || sampling.repeat_penalty == 1.0F || sampling.repeat_last == 0) return {};
  const auto length = static_cast<std::size_t>(static_cast<const std::int32_t*>(args.lengths.data)[n]);
  const std::span tokens(static_cast<const std::int32_t*>(args.history.row(state_slot(args.slots, n))), length);
  if (sampling.repeat_last < 0) return tokens;
  return tokens.last(std::min(length, static_cast<std::size_t>(sampling.repeat_last)));
}

void penalize(std::span<const float> logits, std::span<const std::int32_t> tokens, float penalty,
              std::span<float> values) {
  std::copy(logits.begin(), logits.end(), values.begin());
  // From the raw logits, so that a token that occurs twice is penalized once.
  for (const std::int32_t token : tokens) {
    const auto i = static_cast<std::size_t>(token);
    if (token < 0 || i >= logits.size()) continue;
    values[i] = logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty;
  }
}

std::span<const std::uint32_t> allowed_tokens(const SampleTokensArgs& args, std::int64_t n) {
  if (!args.allowed.defined()) return {};
  return {static_cast<const std::uint32_t*>(args.allowed.row(n)), static_cast<std::size_t>(args.allowed.dim(1))};
}

void keep_allowed(std::span<const float> logits, std::span<const std::uint32_t> allowed, std::span<float> values) {
  constexpr std::size_t kBits = 32;
  for (std::size_t first = 0; first < logits.size(); first += kBits) {
    const std::uint32_t bits = allowed[first / kBits];
    for (std::size_t i = first; i < std::min(first + kBits, logits.size()); ++i) {
      values[i] = (bits >> (i - first) & 1U) != 0 ? logits[i] : -std::numeric_limits<float>::infinity();
    }
  }
}

bool has_probabilities(std::span<const float> logits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // Without an early end, which would keep it from being vectorized. NaN is not below infinity either.
  unsigned numbers = 1;
  unsigned some = 0;
  for (const float logit : logits) {
    numbers &= logit < kInfinity ? 1U : 0U;
    some |= logit > -kInfinity ? 1U : 0U;
  }
  return (numbers & some) != 0;
}

double log_normalizer(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

void sort_likeliest(std::span<const float> logits, std::size_t count, std::span<std::int32_t> order) {
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float left = logits[static_cast<std::size_t>(a)];
    const float right = logits[static_cast<std::size_t>(b)];
    return left > right || (left == right && a < b);
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(), likelier);
}

}  // namespace thalweg
