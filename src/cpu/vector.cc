#include "cpu/vector.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/float16.h"
#include "cpu/arm_level.h"
#include "quant/blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/vector.cc"
#include <hwy/foreach_target.h>
// Highway requires this order.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thalweg::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using V32 = hn::Vec<F32>;
constexpr F32 kF32;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(kF32));

// Calls body for each full vector, then for each remaining element.
template <class Vector, class Scalar>
HWY_INLINE void for_row(std::int64_t n, Vector vector, Scalar scalar) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) vector(i);
  for (; i < n; ++i) scalar(i);
}

HWY_INLINE V32 from_bf16(const std::uint16_t* from) {
  const hn::Rebind<std::uint16_t, F32> d16;
  const hn::RebindToUnsigned<F32> d32;
  return hn::BitCast(kF32, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, from))));
}

// Nearest, ties to even, NaN kept: the bits of the bf16 in the upper half of each lane.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<F32>> bf16_bits(V32 x) {
  const hn::RebindToUnsigned<F32> d;
  const auto bits = hn::BitCast(d, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(d, 0x7FFF)), odd);
  const auto nan = hn::Or(bits, hn::Set(d, 0x400000));
  const auto is_nan = hn::RebindMask(d, hn::IsNaN(x));
  return hn::And(hn::IfThenElse(is_nan, nan, rounded), hn::Set(d, 0xFFFF0000U));
}

void load_q8_0(const BlockQ8_0* blocks, std::int64_t n, float* to) {
  const hn::Rebind<std::int8_t, F32> d8;
  const hn::RebindToSigned<F32> d32;
  static_assert(32 % kLanes == 0);
  for (std::int64_t b = 0; b < n / 32; ++b) {
    const float scale = blocks[b].scale.f32();
    for (std::int64_t i = 0; i < 32; i += kLanes) {
      const auto codes = hn::ConvertTo(kF32, hn::PromoteTo(d32, hn::LoadU(d8, blocks[b].codes.data() + i)));
      hn::StoreU(hn::Mul(codes, hn::Set(kF32, scale)), kF32, to + 32 * b + i);
    }
  }
}

void load(DType dtype, const void* from, std::int64_t n, float* to) {
  if (dtype == DType::kQ8_0) return load_q8_0(static_cast<const BlockQ8_0*>(from), n, to);
  const auto* half = static_cast<const std::uint16_t*>(from);
  if (dtype == DType::kBF16) {
    for_row(
        n, [&](std::int64_t i) { hn::StoreU(from_bf16(half + i), kF32, to + i); },
        [&](std::int64_t i) { to[i] = bf16_to_f32(half[i]); });
  } else if (dtype == DType::kF16) {
    const hn::Rebind<hwy::float16_t, F32> d16;
    const auto* f16 = static_cast<const hwy::float16_t*>(from);
    for_row(
        n, [&](std::int64_t i) { hn::StoreU(hn::PromoteTo(kF32, hn::LoadU(d16, f16 + i)), kF32, to + i); },
        [&](std::int64_t i) { to[i] = f16_to_f32(half[i]); });
  } else {
    std::copy_n(static_cast<const float*>(from), n, to);
  }
}

void store(DType dtype, const float* from, std::int64_t n, void* to) {
  auto* half = static_cast<std::uint16_t*>(to);
  if (dtype == DType::kBF16) {
    const hn::Rebind<std::uint16_t, F32> d16;
    for_row(
        n,
        [&](std::int64_t i) {
          const auto bits = hn::ShiftRight<16>(bf16_bits(hn::LoadU(kF32, from + i)));
          hn::StoreU(hn::TruncateTo(d16, bits), d16, half + i);
        },
        [&](std::int64_t i) { half[i] = f32_to_bf16(from[i]); });
  } else if (dtype == DType::kF16) {
#if HWY_TARGET <= HWY_AVX2
    // The hardware's conversion has the bits of f32_to_f16; Highway's emulation on older processors has not.
    const hn::Rebind<hwy::float16_t, F32> d16;
    auto* f16 = static_cast<hwy::float16_t*>(to);
    for_row(
        n, [&](std::int64_t i) { hn::StoreU(hn::DemoteTo(d16, hn::LoadU(kF32, from + i)), d16, f16 + i); },
        [&](std::int64_t i) { half[i] = f32_to_f16(from[i]); });
#else
    for (std::int64_t i = 0; i < n; ++i) half[i] = f32_to_f16(from[i]);
#endif
  } else {
    std::copy_n(from, n, static_cast<float*>(to));
  }
}

void round_to_bf16(float* x, std::int64_t n) {
  for_row(
      n, [&](std::int64_t i) { hn::StoreU(hn::BitCast(kF32, bf16_bits(hn::LoadU(kF32, x + i))), kF32, x + i); },
      [&](std::int64_t i) { x[i] = thalweg::round_to_bf16(x[i]); });
}

float dot(const float* a, const float* b, std::int64_t n) {
  V32 sum0 = hn::Zero(kF32);
  V32 sum1 = hn::Zero(kF32);
  V32 sum2 = hn::Zero(kF32);
  V32 sum3 = hn::Zero(kF32);
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    sum0 = hn::MulAdd(hn::LoadU(kF32, a + i), hn::LoadU(kF32, b + i), sum0);
    sum1 = hn::MulAdd(hn::LoadU(kF32, a + i + kLanes), hn::LoadU(kF32, b + i + kLanes), sum1);
    sum2 = hn::MulAdd(hn::LoadU(kF32, a + i + 2 * kLanes), hn::LoadU(kF32, b + i + 2 * kLanes), sum2);
    sum3 = hn::MulAdd(hn::LoadU(kF32, a + i + 3 * kLanes), hn::LoadU(kF32, b + i + 3 * kLanes), sum3);
  }
  for (; i + kLanes <= n; i += kLanes) sum0 = hn::MulAdd(hn::LoadU(kF32, a + i), hn::LoadU(kF32, b + i), sum0);
  const V32 sum = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  float total = hn::GetLane(hn::SumOfLanes(kF32, sum));
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}

void axpy(float alpha, const float* x, std::int64_t n, float* y) {
  const V32 factor = hn::Set(kF32, alpha);
  for_row(
      n,
      [&](std::int64_t i) {
        hn::StoreU(hn::MulAdd(factor, hn::LoadU(kF32, x + i), hn::LoadU(kF32, y + i)), kF32, y + i);
      },
      [&](std::int64_t i) { y[i] += alpha * x[i]; });
}

void scale(float alpha, const float* x, std::int64_t n, float* y) {
  const V32 factor = hn::Set(kF32, alpha);
  for_row(
      n, [&](std::int64_t i) { hn::StoreU(hn::Mul(factor, hn::LoadU(kF32, x + i)), kF32, y + i); },
      [&](std::int64_t i) { y[i] = alpha * x[i]; });
}

void multiply(const float* a, const float* b, std::int64_t n, float* y) {
  for_row(
      n, [&](std::int64_t i) { hn::StoreU(hn::Mul(hn::LoadU(kF32, a + i), hn::LoadU(kF32, b + i)), kF32, y + i); },
      [&](std::int64_t i) { y[i] = a[i] * b[i]; });
}

// x / (1 + exp(-x)). The clamp keeps exp finite; silu is 0 or x in f32 there anyway.
HWY_INLINE V32 silu(V32 x) {
  const V32 one = hn::Set(kF32, 1.0F);
  const V32 exponent = hn::Min(hn::Neg(x), hn::Set(kF32, 87.0F));
  return hn::Div(x, hn::Add(one, hn::Exp(kF32, exponent)));
}

// A value has the same bits whatever its position and n, so that callers may cut rows anywhere.
void silu_multiply(const float* gate, const float* up, std::int64_t n, float* y) {
  const auto activate = [](const float* g, const float* u, float* to) {
    const V32 activated = silu(hn::LoadU(kF32, g));
    hn::StoreU(u != nullptr ? hn::Mul(activated, hn::LoadU(kF32, u)) : activated, kF32, to);
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) activate(gate + i, up != nullptr ? up + i : nullptr, y + i);
  if (i == n) return;
  std::array<float, kLanes> last_gate{};
  std::array<float, kLanes> last_up{};
  std::copy_n(gate + i, n - i, last_gate.data());
  if (up != nullptr) std::copy_n(up + i, n - i, last_up.data());
  activate(last_gate.data(), up != nullptr ? last_up.data() : nullptr, last_gate.data());
  std::copy_n(last_gate.data(), n - i, y + i);
}

float exp_minus_max(const float* x, std::int64_t n, float* y) {
  if (n == 0) return 0.0F;
  float maximum = x[0];
  for (std::int64_t i = 1; i < n; ++i) maximum = std::max(maximum, x[i]);
  V32 sums = hn::Zero(kF32);
  float rest = 0.0F;
  const V32 top = hn::Set(kF32, maximum);
  for_row(
      n,
      [&](std::int64_t i) {
        const V32 e = hn::Exp(kF32, hn::Max(hn::Sub(hn::LoadU(kF32, x + i), top), hn::Set(kF32, -104.0F)));
        hn::StoreU(e, kF32, y + i);
        sums = hn::Add(sums, e);
      },
      [&](std::int64_t i) {
        y[i] = std::exp(x[i] - maximum);
        rest += y[i];
      });
  return rest + hn::GetLane(hn::SumOfLanes(kF32, sums));
}

void multiply_by_decay(float top, const float* x, std::int64_t n, float* y) {
  const V32 from = hn::Set(kF32, top);
  for_row(
      n,
      [&](std::int64_t i) {
        const V32 exponent = hn::Min(hn::Sub(from, hn::LoadU(kF32, x + i)), hn::Zero(kF32));
        hn::StoreU(hn::Mul(hn::LoadU(kF32, y + i), hn::Exp(kF32, exponent)), kF32, y + i);
      },
      [&](std::int64_t i) { y[i] *= std::exp(std::min(top - x[i], 0.0F)); });
}

// A tile of kRows x kVectors accumulators; six rows of two vectors keep both FMA pipes busy and fit 16 registers.
template <int kRows, int kVectors>
HWY_INLINE void gemm_tile(std::int64_t k, const float* a, std::int64_t a_row, std::int64_t a_column, const float* b,
                          std::int64_t b_row, float* c, std::int64_t c_row, bool accumulate) {
  V32 sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      sums[i][j] = accumulate ? hn::LoadU(kF32, c + i * c_row + j * kLanes) : hn::Zero(kF32);
    }
  }
  for (std::int64_t step = 0; step < k; ++step) {
    V32 columns[kVectors];
    for (int j = 0; j < kVectors; ++j) columns[j] = hn::LoadU(kF32, b + step * b_row + j * kLanes);
    for (int i = 0; i < kRows; ++i) {
      const V32 factor = hn::Set(kF32, a[i * a_row + step * a_column]);
      for (int j = 0; j < kVectors; ++j) sums[i][j] = hn::MulAdd(factor, columns[j], sums[i][j]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) hn::StoreU(sums[i][j], kF32, c + i * c_row + j * kLanes);
  }
}

template <int kRows>
HWY_INLINE void gemm_band(std::int64_t n, std::int64_t k, const float* a, std::int64_t a_row, std::int64_t a_column,
                          const float* b, std::int64_t b_row, float* c, std::int64_t c_row, bool accumulate) {
  std::int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    gemm_tile<kRows, 2>(k, a, a_row, a_column, b + j, b_row, c + j, c_row, accumulate);
  }
  for (; j < n; j += kLanes) gemm_tile<kRows, 1>(k, a, a_row, a_column, b + j, b_row, c + j, c_row, accumulate);
}

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t a_row, std::int64_t a_column,
          const float* b, std::int64_t b_row, float* c, std::int64_t c_row, bool accumulate) {
  std::int64_t i = 0;
  // Eight rows go as two bands of four: two rows have too few independent sums to hide the latency.
  for (; i + 6 <= m && m - i != 8; i += 6) {
    gemm_band<6>(n, k, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, accumulate);
  }
  for (; i + 4 <= m; i += 4) {
    gemm_band<4>(n, k, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, accumulate);
  }
  for (; i + 2 <= m; i += 2) {
    gemm_band<2>(n, k, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, accumulate);
  }
  if (i < m) gemm_band<1>(n, k, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, accumulate);
}

// Sums the blocks of four lanes into one block.
template <class D>
HWY_INLINE auto sum_blocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return sum_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    static_cast<void>(d);
    return v;
  }
}

// to[0..3] = the sums of the lanes of four vectors, at a third of the cost of four separate sums.
HWY_INLINE void store_sums(V32 a, V32 b, V32 c, V32 d, float* to) {
  const hn::RepartitionToWide<F32> d64;
  const auto ab = hn::BitCast(d64, hn::Add(hn::InterleaveLower(kF32, a, b), hn::InterleaveUpper(kF32, a, b)));
  const auto cd = hn::BitCast(d64, hn::Add(hn::InterleaveLower(kF32, c, d), hn::InterleaveUpper(kF32, c, d)));
  const V32 sums =
      hn::Add(hn::BitCast(kF32, hn::InterleaveLower(d64, ab, cd)), hn::BitCast(kF32, hn::InterleaveUpper(d64, ab, cd)));
  hn::StoreU(sum_blocks(kF32, sums), hn::FixedTag<float, 4>(), to);
}

// A tile of kRows x 4 sums, of which kColumns are stored. The order of additions is the same in every tile.
template <int kRows, int kColumns>
HWY_INLINE void rows_tile(std::int64_t k, const float* a, std::int64_t a_row, const float* b, std::int64_t b_row,
                          float* y, std::int64_t y_row) {
  V32 sums[kRows][4];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < 4; ++j) sums[i][j] = hn::Zero(kF32);
  }
  std::int64_t step = 0;
  for (; step + kLanes <= k; step += kLanes) {
    V32 left[kRows];
    for (int i = 0; i < kRows; ++i) left[i] = hn::LoadU(kF32, a + i * a_row + step);
    for (int j = 0; j < kColumns; ++j) {
      const V32 right = hn::LoadU(kF32, b + j * b_row + step);
      for (int i = 0; i < kRows; ++i) sums[i][j] = hn::MulAdd(left[i], right, sums[i][j]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    float totals[4];
    store_sums(sums[i][0], sums[i][1], sums[i][2], sums[i][3], totals);
    for (int j = 0; j < kColumns; ++j) {
      for (std::int64_t rest = step; rest < k; ++rest) totals[j] += a[i * a_row + rest] * b[j * b_row + rest];
      y[i * y_row + j] = totals[j];
    }
  }
}

template <int kRows>
HWY_INLINE void rows_band(std::int64_t n, std::int64_t k, const float* a, std::int64_t a_row, const float* b,
                          std::int64_t b_row, float* y, std::int64_t y_row) {
  std::int64_t j = 0;
  for (; j + 4 <= n; j += 4) rows_tile<kRows, 4>(k, a, a_row, b + j * b_row, b_row, y + j, y_row);
  for (; j < n; ++j) rows_tile<kRows, 1>(k, a, a_row, b + j * b_row, b_row, y + j, y_row);
}

void gemm_rows(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t a_row, const float* b,
               std::int64_t b_row, float* y, std::int64_t y_row) {
  constexpr int kBand = kLanes >= 16 ? 4 : 3;  // 16 or 32 registers
  std::int64_t i = 0;
  for (; i + kBand <= m; i += kBand) rows_band<kBand>(n, k, a + i * a_row, a_row, b, b_row, y + i * y_row, y_row);
  for (; i + 2 <= m; i += 2) rows_band<2>(n, k, a + i * a_row, a_row, b, b_row, y + i * y_row, y_row);
  if (i < m) rows_band<1>(n, k, a + i * a_row, a_row, b, b_row, y + i * y_row, y_row);
}

void transpose(std::int64_t rows, std::int64_t columns, const float* from, std::int64_t from_row, float* to,
               std::int64_t to_row) {
  const hn::FixedTag<float, 4> d;
  const auto scalar = [&](std::int64_t i, std::int64_t j) { to[j * to_row + i] = from[i * from_row + j]; };
  std::int64_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    std::int64_t j = 0;
    for (; j + 4 <= columns; j += 4) {
      const float* tile = from + i * from_row + j;
      const auto a = hn::LoadU(d, tile);
      const auto b = hn::LoadU(d, tile + from_row);
      const auto c = hn::LoadU(d, tile + 2 * from_row);
      const auto e = hn::LoadU(d, tile + 3 * from_row);
      const auto low0 = hn::InterleaveLower(d, a, c);
      const auto low1 = hn::InterleaveLower(d, b, e);
      const auto high0 = hn::InterleaveUpper(d, a, c);
      const auto high1 = hn::InterleaveUpper(d, b, e);
      float* out = to + j * to_row + i;
      hn::StoreU(hn::InterleaveLower(d, low0, low1), d, out);
      hn::StoreU(hn::InterleaveUpper(d, low0, low1), d, out + to_row);
      hn::StoreU(hn::InterleaveLower(d, high0, high1), d, out + 2 * to_row);
      hn::StoreU(hn::InterleaveUpper(d, high0, high1), d, out + 3 * to_row);
    }
    for (; j < columns; ++j) {
      for (std::int64_t r = i; r < i + 4; ++r) scalar(r, j);
    }
  }
  for (; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) scalar(i, j);
  }
}

// Rows of the state are independent; four at a time hide the latency of the sums.
template <int kRows>
HWY_INLINE void delta_rows(float* state, std::int64_t k_size, const float* q, const float* k, const float* v,
                           float decay, float beta, float* o) {
  V32 sums[kRows];
  for (int r = 0; r < kRows; ++r) sums[r] = hn::Zero(kF32);
  for (std::int64_t i = 0; i < k_size; i += kLanes) {
    const V32 key = hn::LoadU(kF32, k + i);
    for (int r = 0; r < kRows; ++r) sums[r] = hn::MulAdd(hn::LoadU(kF32, state + r * k_size + i), key, sums[r]);
  }
  V32 deltas[kRows];
  for (int r = 0; r < kRows; ++r) {
    const float memory = decay * hn::GetLane(hn::SumOfLanes(kF32, sums[r]));
    deltas[r] = hn::Set(kF32, beta * (v[r] - memory));
    sums[r] = hn::Zero(kF32);
  }
  const V32 factor = hn::Set(kF32, decay);
  for (std::int64_t i = 0; i < k_size; i += kLanes) {
    const V32 key = hn::LoadU(kF32, k + i);
    const V32 query = hn::LoadU(kF32, q + i);
    for (int r = 0; r < kRows; ++r) {
      float* element = state + r * k_size + i;
      const V32 updated = hn::MulAdd(deltas[r], key, hn::Mul(factor, hn::LoadU(kF32, element)));
      hn::StoreU(updated, kF32, element);
      sums[r] = hn::MulAdd(updated, query, sums[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) o[r] = hn::GetLane(hn::SumOfLanes(kF32, sums[r]));
}

void delta_step(float* state, std::int64_t v_size, std::int64_t k_size, const float* q, const float* k, const float* v,
                float decay, float beta, float* o) {
  for (std::int64_t row = 0; row < v_size; row += 4) {
    delta_rows<4>(state + row * k_size, k_size, q, k, v + row, decay, beta, o + row);
  }
}

double fma_burst(std::int64_t rounds, float* sink) {
  constexpr int kChains = 10;
  V32 chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = hn::Set(kF32, static_cast<float>(i) + *sink);
  const V32 factor = hn::Set(kF32, 0.999F);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kChains; ++i) chains[i] = hn::MulAdd(chains[i], factor, factor);
  }
  V32 sum = chains[0];
  for (int i = 1; i < kChains; ++i) sum = hn::Add(sum, chains[i]);
  *sink = hn::GetLane(hn::SumOfLanes(kF32, sum));
  return 2.0 * kChains * static_cast<double>(kLanes) * static_cast<double>(rounds);
}

const VectorOps& ops() {
  static constexpr VectorOps instance{load,  store,     round_to_bf16, dot,           axpy,
                                      scale, multiply,  silu_multiply, exp_minus_max, multiply_by_decay,
                                      gemm,  gemm_rows, transpose,     fma_burst,     delta_step};
  return instance;
}

}  // namespace HWY_NAMESPACE
}  // namespace thalweg::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thalweg::cpu {

HWY_EXPORT(ops);

const VectorOps& vector_ops() { return HWY_DYNAMIC_DISPATCH(ops)(); }

#if defined(__aarch64__)

// One target of Highway, and levels of the products of 8-bit rows.
std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const ArmLevel level : arm_levels()) names.emplace_back(name_of(level));
  return names;
}

bool select_instruction_set(std::string_view name) {
  for (const ArmLevel level : arm_levels()) {
    if (!name.empty() && name != name_of(level)) continue;
    select_arm_level(level);
    return true;
  }
  return false;
}

#else

namespace {

// What the processor has, the best first. SupportedTargets reflects a selection, so that they are looked up once.
struct InstructionSet {
  std::string name;
  std::int64_t target;
};
const std::vector<InstructionSet>& all_instruction_sets() {
  static const std::vector<InstructionSet> sets = [] {
    std::vector<InstructionSet> found;
    // Lower bits are better.
    for (std::int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1) {
      std::string name = hwy::TargetName(rest & -rest);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      found.push_back({std::move(name), rest & -rest});
    }
    return found;
  }();
  return sets;
}

}  // namespace

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const InstructionSet& set : all_instruction_sets()) names.push_back(set.name);
  return names;
}

bool select_instruction_set(std::string_view name) {
  const std::vector<InstructionSet>& sets = all_instruction_sets();  // before anything is selected
  if (name.empty()) {
    hwy::SetSupportedTargetsForTest(0);
    return true;
  }
  for (const InstructionSet& set : sets) {
    if (set.name != name) continue;
    hwy::SetSupportedTargetsForTest(set.target);
    return true;
  }
  return false;
}

#endif

}  // namespace thalweg::cpu
#endif  // HWY_ONCE
