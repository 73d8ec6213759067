#include "cpu/nn_vector.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/nn_vector.cc"
#include <hwy/foreach_target.h>
// Highway requires this order.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thalweg::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using NnF32 = hn::ScalableTag<float>;
using NnV32 = hn::Vec<NnF32>;
constexpr NnF32 kNnF32;
constexpr std::int64_t kNnLanes = static_cast<std::int64_t>(hn::MaxLanes(kNnF32));

// 1 + exp(-x). The clamp keeps it finite; quotients by it are 0 in f32 there anyway.
HWY_INLINE NnV32 one_plus_exp_minus(NnV32 x) {
  const NnV32 exponent = hn::Min(hn::Neg(x), hn::Set(kNnF32, 87.0F));
  return hn::Add(hn::Set(kNnF32, 1.0F), hn::Exp(kNnF32, exponent));
}

void convolve(const float* const* inputs, std::int64_t w, const float* taps, std::int64_t tap_row, const float* bias,
              bool silu, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; i += kNnLanes) {
    NnV32 sum = hn::LoadU(kNnF32, bias + i);
    for (std::int64_t j = 0; j < w; ++j) {
      sum = hn::MulAdd(hn::LoadU(kNnF32, inputs[j] + i), hn::LoadU(kNnF32, taps + j * tap_row + i), sum);
    }
    if (silu) sum = hn::Div(sum, one_plus_exp_minus(sum));
    hn::StoreU(sum, kNnF32, y + i);
  }
}

void scale_multiply(float alpha, const float* a, const float* b, std::int64_t n, float* y) {
  const NnV32 factor = hn::Set(kNnF32, alpha);
  std::int64_t i = 0;
  for (; i + kNnLanes <= n; i += kNnLanes) {
    hn::StoreU(hn::Mul(hn::Mul(factor, hn::LoadU(kNnF32, a + i)), hn::LoadU(kNnF32, b + i)), kNnF32, y + i);
  }
  for (; i < n; ++i) y[i] = alpha * a[i] * b[i];
}

void sigmoid_multiply(const float* gate, std::int64_t n, float* y) {
  std::int64_t i = 0;
  for (; i + kNnLanes <= n; i += kNnLanes) {
    const NnV32 denominator = one_plus_exp_minus(hn::LoadU(kNnF32, gate + i));
    hn::StoreU(hn::Div(hn::LoadU(kNnF32, y + i), denominator), kNnF32, y + i);
  }
  for (; i < n; ++i) y[i] /= 1.0F + std::exp(std::min(-gate[i], 87.0F));
}

void rotate(const float* cosine, const float* sine, std::int64_t half, float* x) {
  float* second = x + half;
  std::int64_t i = 0;
  for (; i + kNnLanes <= half; i += kNnLanes) {
    const NnV32 c = hn::LoadU(kNnF32, cosine + i);
    const NnV32 s = hn::LoadU(kNnF32, sine + i);
    const NnV32 a = hn::LoadU(kNnF32, x + i);
    const NnV32 b = hn::LoadU(kNnF32, second + i);
    hn::StoreU(hn::MulSub(a, c, hn::Mul(b, s)), kNnF32, x + i);
    hn::StoreU(hn::MulAdd(b, c, hn::Mul(a, s)), kNnF32, second + i);
  }
  for (; i < half; ++i) {
    const float a = x[i];
    const float b = second[i];
    x[i] = a * cosine[i] - b * sine[i];
    second[i] = b * cosine[i] + a * sine[i];
  }
}

float online_softmax(float scale, float* scores, std::int64_t n, float* maximum, float* sum) {
  const std::int64_t padded = (n + 15) / 16 * 16;
  std::fill(scores + n, scores + padded, scores[0]);
  const NnV32 factor = hn::Set(kNnF32, scale);
  NnV32 tops = hn::Set(kNnF32, *maximum);
  for (std::int64_t i = 0; i < padded; i += kNnLanes) {
    const NnV32 scaled = hn::Mul(factor, hn::LoadU(kNnF32, scores + i));
    hn::StoreU(scaled, kNnF32, scores + i);
    tops = hn::Max(tops, scaled);
  }
  const float old_maximum = *maximum;
  *maximum = hn::GetLane(hn::MaxOfLanes(kNnF32, tops));
  std::fill(scores + n, scores + padded, -std::numeric_limits<float>::max());

  const NnV32 top = hn::Set(kNnF32, *maximum);
  NnV32 sums = hn::Zero(kNnF32);
  for (std::int64_t i = 0; i < padded; i += kNnLanes) {
    const NnV32 weight = hn::Exp(kNnF32, hn::Sub(hn::LoadU(kNnF32, scores + i), top));
    hn::StoreU(weight, kNnF32, scores + i);
    sums = hn::Add(sums, weight);
  }
  const float shrink = std::exp(old_maximum - *maximum);
  *sum = *sum * shrink + hn::GetLane(hn::SumOfLanes(kNnF32, sums));
  return shrink;
}

const NnVectorOps& nn_ops() {
  static constexpr NnVectorOps instance{convolve, scale_multiply, sigmoid_multiply, rotate, online_softmax};
  return instance;
}

}  // namespace HWY_NAMESPACE
}  // namespace thalweg::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thalweg::cpu {

HWY_EXPORT(nn_ops);

const NnVectorOps& nn_vector_ops() { return HWY_DYNAMIC_DISPATCH(nn_ops)(); }

}  // namespace thalweg::cpu
#endif  // HWY_ONCE
