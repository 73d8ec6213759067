#pragma once

// Scales for packing: the codes and scales of a run of weights that make the squared error small.
//
// For given codes the best scale (and minimum) is a linear least-squares problem; for a given scale the best codes are
// the nearest ones. Neither step can raise the error, so alternating them from a few starting scales finds a good local
// minimum. Everything here works on values scaled by a power of two to at most 1, so that squares neither overflow nor
// vanish, and sums in eight lanes, in an order of its own, so that results depend on nothing but the values.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "quant/blocks.h"

namespace thalweg::fit {

// The nearest integer, ties to even, within [low, high], |low| and |high| below 2^22; NaN gives low.
inline float nearest(float x, float low, float high) {
  constexpr float kShift = 0x1.8p23F;  // leaves no fraction bits in the sum
  x = x > low ? x : low;
  x = x < high ? x : high;
  return (x + kShift) - kShift;
}

// The nearest f16 that is finite and, unless the value is zero, not zero: a scale that vanished would take every weight
// with it. NaN gives 0.
inline Word16 scale_word(double value) {
  if (!(value < 0 || value > 0)) return Word16::of(0);
  const auto bits = f32_to_f16(static_cast<float>(std::clamp(value, -65504.0, 65504.0)));
  const bool vanished = (bits & 0x7FFFU) == 0;
  return Word16::of(vanished ? static_cast<std::uint16_t>(bits | 1U) : bits);
}

// The same for a minimum, which may vanish.
inline Word16 minimum_word(double value) {
  return Word16::of(std::isnan(value) ? std::uint16_t{0}
                                      : f32_to_f16(static_cast<float>(std::clamp(value, -65504.0, 65504.0))));
}

// values = unit y, unit a power of two, |y| <= 1.
template <int N>
struct Normalised {
  alignas(64) std::array<float, N> y;
  double unit;

  explicit Normalised(const float* values) {
    float largest = 0;
    for (int i = 0; i < N; ++i) largest = std::max(largest, std::fabs(values[i]));  // passes over NaN
    // Not finite: any scale will do, only the casts must stay defined.
    int exponent = 0;
    if (largest > 0 && largest <= std::numeric_limits<float>::max()) std::frexp(largest, &exponent);
    unit = std::ldexp(1.0, exponent);
    const double inverse = std::ldexp(1.0, -exponent);
    for (int i = 0; i < N; ++i) {
      const auto scaled = static_cast<float>(static_cast<double>(values[i]) * inverse);
      y[static_cast<std::size_t>(i)] = scaled > -1 ? (scaled < 1 ? scaled : 1) : -1;
    }
  }
};

using Lanes = std::array<float, 8>;

inline float total(const Lanes& lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// term(i) summed over i in 0..N-1.
template <int N, class Term>
float sum(Term&& term) {
  static_assert(N % 8 == 0);
  Lanes lanes{};
  for (int i = 0; i < N; i += 8) {
    for (int l = 0; l < 8; ++l) lanes[static_cast<std::size_t>(l)] += term(i + l);
  }
  return total(lanes);
}

// A range of codes.
struct Range {
  float low;
  float high;
};

struct Affine {
  float scale;
  float offset;
};

// Squared error of y = scale code + offset with the nearest codes.
template <int N>
float error(const float* y, Affine fit, Range codes) {
  const float inverse = fit.scale == 0 ? 0 : 1 / fit.scale;
  return sum<N>([=](int i) {
    const float code = nearest((y[i] - fit.offset) * inverse, codes.low, codes.high);
    const float difference = y[i] - (fit.scale * code + fit.offset);
    return difference * difference;
  });
}

// Sums over a run of weights with the nearest codes of a trial scale.
struct Moments {
  float code;
  float code_code;
  float y_code;
};

template <int N>
Moments moments(const float* y, float inverse, float offset, Range codes) {
  Lanes code_sum{};
  Lanes code_code_sum{};
  Lanes y_code_sum{};
  for (int i = 0; i < N; i += 8) {
    for (int l = 0; l < 8; ++l) {
      const float code = nearest((y[i + l] - offset) * inverse, codes.low, codes.high);
      const auto lane = static_cast<std::size_t>(l);
      code_sum[lane] += code;
      code_code_sum[lane] += code * code;
      y_code_sum[lane] += y[i + l] * code;
    }
  }
  return {total(code_sum), total(code_code_sum), total(y_code_sum)};
}

// The element of the largest magnitude.
template <int N>
float peak(const float* y) {
  float result = 0;
  for (int i = 0; i < N; ++i) {
    if (std::fabs(y[i]) > std::fabs(result)) result = y[i];
  }
  return result;
}

// y = scale code with codes from low to -low - 1: the peak may go to either end, and starts at or near it.
template <int N>
float scale(const float* y, float low) {
  const float largest = peak<N>(y);
  if (largest == 0) return 0;
  const Range codes{low, -low - 1};
  float best_scale = largest / low;
  float best_gain = -1;  // how much of sum y^2 the scale explains
  const auto consider = [&](float inverse) {
    const Moments m = moments<N>(y, inverse, 0, codes);
    if (m.code_code <= 0) return;
    const float gain = m.y_code * m.y_code / m.code_code;
    if (gain > best_gain) {
      best_gain = gain;
      best_scale = m.y_code / m.code_code;
    }
  };
  consider(low / largest);
  constexpr int kSteps = 7;
  for (int step = -kSteps; step <= kSteps; ++step) {
    const float end = 0.15F * static_cast<float>(step);
    if (step != 0) consider((low + end) / largest);
    consider((codes.high + end) / largest);
  }
  for (int round = 0; round < 4; ++round) {
    const float before = best_gain;
    consider(1 / best_scale);
    if (best_gain == before) break;
  }
  return best_scale;
}

enum class Offset : std::uint8_t { kAny, kNotPositive };

// y = scale code + offset with codes from 0 to high, scale >= 0.
template <int N>
Affine scale_and_offset(const float* y, float high, Offset constraint) {
  float lowest = y[0];
  float highest = y[0];
  for (int i = 1; i < N; ++i) {
    lowest = std::min(lowest, y[i]);
    highest = std::max(highest, y[i]);
  }
  if (constraint == Offset::kNotPositive) lowest = std::min(lowest, 0.0F);
  if (!(highest > lowest)) return {0, lowest};

  const Range codes{0, high};
  Affine best{(highest - lowest) / high, lowest};
  float best_error = error<N>(y, best, codes);
  const float y_sum = sum<N>([=](int i) { return y[i]; });
  const auto consider = [&](float inverse, float offset) {
    const Moments m = moments<N>(y, inverse, offset, codes);
    const float determinant = static_cast<float>(N) * m.code_code - m.code * m.code;
    if (determinant <= 0) return;
    Affine trial{(static_cast<float>(N) * m.y_code - y_sum * m.code) / determinant,
                 (y_sum * m.code_code - m.y_code * m.code) / determinant};
    if (constraint == Offset::kNotPositive && trial.offset > 0) trial = {m.y_code / m.code_code, 0};
    if (!(trial.scale > 0)) return;
    const float trial_error = error<N>(y, trial, codes);
    if (trial_error < best_error) {
      best_error = trial_error;
      best = trial;
    }
  };
  constexpr int kSteps = 10;
  for (int step = 0; step <= kSteps && best_error > 0; ++step) {
    consider((high - 0.5F + 0.15F * static_cast<float>(step)) / (highest - lowest), lowest);
  }
  for (int round = 0; round < 4 && best_error > 0; ++round) {
    const float before = best_error;
    consider(1 / best.scale, best.offset);
    if (best_error == before) break;
  }
  return best;
}

}  // namespace thalweg::fit
