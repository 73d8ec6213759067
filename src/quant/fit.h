#pragma once

// Scales for packing: codes and scales of a run of weights with a small squared error.
//
// For given codes the best scale (and minimum) is a linear least-squares problem; for a given scale the best codes are
// the nearest ones. Neither step can raise the error, so alternating them from many starting scales at once
// (fit_trials.h) finds a good local minimum. Everything here works on values scaled by a power of two to at most 1, so
// that squares neither overflow nor underflow, and sums in eight lanes in a fixed order, so that results depend on the
// values alone.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "quant/blocks.h"
#include "quant/fit_trials.h"

namespace thalweg::fit {

// The nearest integer, ties to even, within [low, high], |low| and |high| below 2^22; NaN gives low.
inline float nearest(float x, float low, float high) {
  constexpr float kShift = 0x1.8p23F;  // leaves no fraction bits in the sum
  x = x > low ? x : low;
  x = x < high ? x : high;
  return (x + kShift) - kShift;
}

// The nearest finite f16, and not zero unless the value is: a scale of zero would make every weight zero. NaN gives 0.
inline Word16 scale_word(double value) {
  if (!(value < 0 || value > 0)) return Word16::of(0);
  const auto bits = f32_to_f16(static_cast<float>(std::clamp(value, -65504.0, 65504.0)));
  const bool vanished = (bits & 0x7FFFU) == 0;
  return Word16::of(vanished ? static_cast<std::uint16_t>(bits | 1U) : bits);
}

// The same for a minimum, which may round to zero.
inline Word16 minimum_word(double value) {
  return Word16::of(std::isnan(value) ? std::uint16_t{0}
                                      : f32_to_f16(static_cast<float>(std::clamp(value, -65504.0, 65504.0))));
}

// values = power y, with `power` a power of two and |y| <= 1.
template <int N>
struct Normalized {
  alignas(64) std::array<float, N> y;
  double power;

  explicit Normalized(const float* values) {
    float largest = 0;
    for (int i = 0; i < N; ++i) largest = std::max(largest, std::fabs(values[i]));  // ignores NaN
    // Not finite: any scale is acceptable if the casts are defined.
    int exponent = 0;
    if (largest > 0 && largest <= std::numeric_limits<float>::max()) std::frexp(largest, &exponent);
    power = std::ldexp(1.0, exponent);
    // Within these bounds, the power and its products are normal numbers of f32.
    if (exponent > -100 && exponent < 100) {
      scale(values, static_cast<float>(std::ldexp(1.0, -exponent)));
    } else {
      scale(values, std::ldexp(1.0, -exponent));
    }
  }

 private:
  template <class Real>
  void scale(const float* values, Real inverse) {
    for (int i = 0; i < N; ++i) {
      const auto scaled = static_cast<float>(static_cast<Real>(values[i]) * inverse);
      y[static_cast<std::size_t>(i)] = scaled > -1 ? (scaled < 1 ? scaled : 1) : -1;
    }
  }
};

using Lanes = std::array<float, 8>;

inline float total(const Lanes& lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// Sum of term(i) over i in 0..N-1.
template <int N, class Term>
float sum(Term&& term) {
  static_assert(N % 8 == 0);
  Lanes lanes{};
  for (int i = 0; i < N; i += 8) {
    for (int l = 0; l < 8; ++l) lanes[static_cast<std::size_t>(l)] += term(i + l);
  }
  return total(lanes);
}

inline float inverse_of(float scale) { return scale == 0 ? 0 : 1 / scale; }

// The codes nearest to y = scale code + offset, counted from codes.low.
template <int N>
void nearest_codes(const float* y, Affine fit, Range codes, std::uint8_t* to) {
  const float inverse = inverse_of(fit.scale);
  for (int i = 0; i < N; ++i) {
    const float code = nearest((y[i] - fit.offset) * inverse, codes.low, codes.high);
    to[i] = static_cast<std::uint8_t>(static_cast<int>(code - codes.low));
  }
}

// Squared error of y = scale code + offset with the nearest codes.
template <int N>
float error(const float* y, Affine fit, Range codes) {
  const float inverse = inverse_of(fit.scale);
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

// y = scale code with codes from low to -low - 1.
template <int N>
float scale(const float* y, float low) {
  return trial_ops().scale(y, N, low);
}

enum class Offset : std::uint8_t { kAny, kNotPositive };

// y = scale code + offset with codes from 0 to high, scale >= 0.
template <int N>
Affine scale_and_offset(const float* y, float high, Offset constraint) {
  return trial_ops().scale_and_offset(y, N, high, constraint == Offset::kNotPositive);
}

}  // namespace thalweg::fit
