#include "quant/fit_trials.h"

#include <algorithm>
#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/fit_trials.cc"
#include <hwy/foreach_target.h>
// Highway requires this order.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thalweg::fit {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, kTrials>;
using V = hn::Vec<F32>;
constexpr F32 kF32;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));

// The nearest integer in [low, high], ties to even, as fit::nearest().
HWY_INLINE V nearest(V x, V low, V high) {
  const V shift = hn::Set(kF32, 0x1.8p23F);
  return hn::Sub(hn::Add(hn::Min(hn::Max(x, low), high), shift), shift);
}

constexpr int kVectors = kTrials / kLanes;
constexpr int kRounds = 3;

HWY_INLINE V constant(float x) { return hn::Set(kF32, x); }
// 1 / x, 0 for 0.
HWY_INLINE V inverse_of(V x) { return hn::IfThenZeroElse(hn::Eq(x, hn::Zero(kF32)), hn::Div(constant(1.0F), x)); }
// first, first + 1, ...
HWY_INLINE V count_from(int first) { return hn::Iota(kF32, static_cast<float>(first)); }

struct Bounds {
  float lowest;
  float highest;
};
HWY_INLINE Bounds bounds_of(const float* y, int n) {
  V least = hn::LoadU(kF32, y);
  V most = least;
  for (int i = kLanes; i < n; i += kLanes) {
    const V next = hn::LoadU(kF32, y + i);
    least = hn::Min(least, next);
    most = hn::Max(most, next);
  }
  return {hn::GetLane(hn::MinOfLanes(kF32, least)), hn::GetLane(hn::MaxOfLanes(kF32, most))};
}

// The index of the first minimum.
HWY_INLINE int first_least(const V* values) {
  V least = values[0];
  for (int j = 1; j < kVectors; ++j) least = hn::Min(least, values[j]);
  least = hn::MinOfLanes(kF32, least);
  for (int j = 0; j < kVectors; ++j) {
    const auto found = hn::FindFirstTrue(kF32, hn::Eq(values[j], least));
    if (found >= 0) return j * kLanes + static_cast<int>(found);
  }
  return 0;
}
HWY_INLINE float lane(const V* values, int i) {
  Trials all;
  for (int j = 0; j < kVectors; ++j) hn::StoreU(values[j], kF32, all.data() + j * kLanes);
  return all[static_cast<std::size_t>(i)];
}

// Sums over the weights with the codes nearest to (y - offset) inverse.
struct Moments {
  V code;
  V code_code;
  V y;
  V y_code;
};
HWY_INLINE Moments moments(const float* y, int n, V inverse, V offset, Range codes) {
  const V low = constant(codes.low);
  const V high = constant(codes.high);
  Moments m{hn::Zero(kF32), hn::Zero(kF32), hn::Zero(kF32), hn::Zero(kF32)};
  for (int i = 0; i < n; ++i) {
    const V value = constant(y[i]);
    const V c = nearest(hn::Mul(hn::Sub(value, offset), inverse), low, high);
    m.code = hn::Add(m.code, c);
    m.code_code = hn::Add(m.code_code, hn::Mul(c, c));
    m.y = hn::Add(m.y, value);
    m.y_code = hn::Add(m.y_code, hn::Mul(value, c));
  }
  return m;
}

// For given codes the best scale is a linear least-squares problem; its residual is sum y^2 minus a quotient.
float scale(const float* y, int n, float low) {
  const Bounds bounds = bounds_of(y, n);
  const float largest = bounds.highest >= -bounds.lowest ? bounds.highest : bounds.lowest;
  if (largest == 0) return 0;
  const Range codes{low, -low - 1};
  V best[kVectors];  // scales
  V loss[kVectors];  // residuals minus sum y^2
  const auto consider = [&](int j, V inverse) HWY_ATTR {
    const Moments m = moments(y, n, inverse, hn::Zero(kF32), codes);
    const V fitted = hn::Div(m.y_code, m.code_code);
    const V trial = hn::Neg(hn::Mul(fitted, m.y_code));  // NaN if all codes are 0
    const auto better = hn::Lt(trial, loss[j]);
    best[j] = hn::IfThenElse(better, fitted, best[j]);
    loss[j] = hn::IfThenElse(better, trial, loss[j]);
  };
  for (int j = 0; j < kVectors; ++j) {
    best[j] = constant(largest / low);
    loss[j] = hn::Zero(kF32);
    // The peak at -7..8 small steps from the lowest code, then from the highest.
    const V steps = hn::Mul(hn::Sub(count_from(j * kLanes), constant(7.0F)), constant(0.15F));
    for (const float end : {low, codes.high}) consider(j, hn::Div(hn::Add(constant(end), steps), constant(largest)));
    for (int round = 1; round < kRounds; ++round) consider(j, inverse_of(best[j]));
  }
  return lane(best, first_least(loss));
}

HWY_INLINE V error(const float* y, int n, V scale, V offset, Range codes) {
  const V low = constant(codes.low);
  const V high = constant(codes.high);
  const V inverse = inverse_of(scale);
  V sum = hn::Zero(kF32);
  for (int i = 0; i < n; ++i) {
    const V value = constant(y[i]);
    const V c = nearest(hn::Mul(hn::Sub(value, offset), inverse), low, high);
    const V difference = hn::Sub(value, hn::Add(hn::Mul(scale, c), offset));
    sum = hn::Add(sum, hn::Mul(difference, difference));
  }
  return sum;
}

Affine scale_and_offset(const float* y, int n, float high, bool not_positive) {
  Bounds bounds = bounds_of(y, n);
  if (not_positive) bounds.lowest = std::min(bounds.lowest, 0.0F);
  const float width = bounds.highest - bounds.lowest;
  if (!(width > 0)) return {0, bounds.lowest};
  const Range codes{0, high};
  const V count = constant(static_cast<float>(n));
  V scales[kVectors];
  V offsets[kVectors];
  V losses[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    // The first trial spans the values and is kept, the others start around it.
    const V numbers = count_from(j * kLanes);
    const auto is_first = hn::Eq(numbers, hn::Zero(kF32));
    const V ends = hn::Add(hn::Mul(numbers, constant(0.1F)), constant(high - 0.6F));
    V fitted = hn::Div(constant(width), hn::IfThenElse(is_first, constant(high), ends));
    V offset = constant(bounds.lowest);
    for (int round = 0; round < kRounds; ++round) {
      const Moments m = moments(y, n, hn::Div(constant(1.0F), fitted), offset, codes);
      const V determinant = hn::Sub(hn::Mul(count, m.code_code), hn::Mul(m.code, m.code));
      V next = hn::Div(hn::Sub(hn::Mul(count, m.y_code), hn::Mul(m.y, m.code)), determinant);
      V low = hn::Div(hn::Sub(hn::Mul(m.y, m.code_code), hn::Mul(m.y_code, m.code)), determinant);
      if (not_positive) {
        const auto beyond = hn::Gt(low, hn::Zero(kF32));
        next = hn::IfThenElse(beyond, hn::Div(m.y_code, m.code_code), next);
        low = hn::IfThenZeroElse(beyond, low);
      }
      const auto valid = hn::And(hn::Gt(determinant, hn::Zero(kF32)), hn::Gt(next, hn::Zero(kF32)));
      const auto moves = hn::AndNot(is_first, valid);
      fitted = hn::IfThenElse(moves, next, fitted);
      offset = hn::IfThenElse(moves, low, offset);
    }
    scales[j] = fitted;
    offsets[j] = offset;
    losses[j] = error(y, n, fitted, offset, codes);
  }
  const int best = first_least(losses);
  return {lane(scales, best), lane(offsets, best)};
}

int least_error(const float* y, int n, const Trials& scale, const Trials& offset, Range codes, float& least) {
  V losses[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    losses[j] =
        error(y, n, hn::LoadU(kF32, scale.data() + j * kLanes), hn::LoadU(kF32, offset.data() + j * kLanes), codes);
  }
  const int best = first_least(losses);
  least = lane(losses, best);
  return best;
}

}  // namespace

const TrialOps& trial_ops() {
  static constexpr TrialOps instance{scale, scale_and_offset, least_error};
  return instance;
}

}  // namespace HWY_NAMESPACE
}  // namespace thalweg::fit
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thalweg::fit {

HWY_EXPORT(trial_ops);

const TrialOps& trial_ops() { return HWY_DYNAMIC_DISPATCH(trial_ops)(); }

}  // namespace thalweg::fit
#endif  // HWY_ONCE
