#pragma once

// Costs and thresholds of the CPU's kernels, each with the measurement that it comes from.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace thalweg::cpu::tuning {

// Nanoseconds per element on one core, within a factor of two: `thalweg bench --threads 1` of add and rms_norm (0.22 to
// 0.27), swiglu (0.63), rope (22 per angle), embedding from Q4_K (0.25) and route_top_k (4.6), AVX-512. parallel_for
// limits the threads of small calls by them.
inline constexpr double kElementNs = 0.2;      // load, a few multiply-adds, store
inline constexpr double kExponentialNs = 0.6;  // the same with an exponential: silu, sigmoid, softmax
inline constexpr double kAngleNs = 20.0;       // sine and cosine in double
inline constexpr double kUnpackNs = 0.25;      // a block format to f32
inline constexpr double kPackNs = 20.0;        // f32 to a block format: 4 (Q8_0) to 110 (K formats)
inline constexpr double kSelectNs = 4.0;       // top-k routing, per expert

// chunk_gated_delta_rule: sequences up to this length run token by token, which needs no transposition and no solve. At
// K = V = 128 16 tokens take 0.27 ms instead of 0.35, one token 0.045 instead of 0.22
// (docs/notes/gated-delta-rule-cpu.md).
inline constexpr std::int64_t kTokenByTokenLength = 24;

// attention: in bf16 from this many tokens on. A task there has up to 256 rows, tokens times heads that share
// keys.
inline constexpr double kBf16AttentionTokens = 32.0;

// Time of a product with a weight matrix on one core: each weight is decoded once per pass, and multiplied once for
// each row of activations.
struct ProductCost {
  double decode;    // ns per weight and pass
  double multiply;  // ns per weight and row
};

// Q4_K, N 1024, K 2048, AVX-512 with VNNI: docs/notes/expert-matmul-cpu.md, "Measured", solved for the GFLOP/s at M = 1
// and M = 64 (57 and 215 exact, 90 and 462 with 8-bit activations). Other formats are within a factor of two.
inline constexpr ProductCost kExactProduct{0.0262, 0.0089};
inline constexpr ProductCost kQ8Product{0.0182, 0.0041};
inline constexpr ProductCost kTileProduct{0.064, 0.0016};  // AMX, M = 1 (of 16) and 64: the same page
// A byte of weights from memory, on one core of many.
inline constexpr double kReadNs = 0.08;
// Rows that RowHint::kMany stands for: a chunk of a prompt.
inline constexpr std::int64_t kManyRows = 512;
constexpr const ProductCost& product_cost(bool q8) { return q8 ? kQ8Product : kExactProduct; }

// Experts that T tokens of S slots each are expected to hit when the experts of one token differ from each other and
// tokens choose independently.
inline double expected_experts(std::int64_t experts, std::int64_t tokens, std::int64_t slots) {
  if (tokens <= 1) return static_cast<double>(tokens * slots);
  const double missed = 1.0 - std::min(1.0, static_cast<double>(slots) / static_cast<double>(experts));
  return static_cast<double>(experts) * (1.0 - std::pow(missed, static_cast<double>(tokens)));
}

// Microseconds for `rows` rows of activations in all, with matrices of `weights` weights that are decoded `passes`
// times.
inline double product_us(const ProductCost& cost, double passes, double rows, double weights, int threads) {
  return (passes * cost.decode + rows * cost.multiply) * weights * 1e-3 / threads;
}

}  // namespace thalweg::cpu::tuning
