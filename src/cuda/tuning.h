#pragma once

// What the choice between CUDA kernels rests on: costs and thresholds as data, each with the measurement it came from.
// Kernels know nothing of their rivals; a kernel's cost() is computed from the constants here.

#include <cstdint>

namespace thalweg::cu::tuning {

namespace gated_delta {}

namespace experts {

// How many rows of activations meet the weights of a call. Costs are stated for each of the three.
enum class Load { kFew, kSome, kMany };

// Microseconds of a kernel on one H200 at a reference shape of each load. Only the order of the kernels' costs matters:
// it changes at the thresholds below and nowhere else.
struct LoadCosts {
  double few;
  double some;
  double many;

  constexpr double at(Load load) const { return load == Load::kFew ? few : load == Load::kSome ? some : many; }
};

// ---- mul_mat_id, mul_mm_id, mul_mv_id: pairs of token and slot

// Up to here hardly two pairs share an expert: E = 128 and 256, top-8, M = 8 (docs/data/cuda-experts.csv).
inline constexpr std::int64_t kMatvecPairs = 64;

// Pairs per expert, on average, from which `wgmma` is faster than `stream`; with fewer, most of a tile is empty. Q6_K
// costs `stream` most to decode; F32, F16 and BF16 need no unpacking (docs/notes/expert-matmul-cuda-tiled.md).
inline constexpr std::int64_t kTiledPairsPerExpert = 10;
inline constexpr std::int64_t kTiledPairsPerExpertQ6K = 4;
inline constexpr std::int64_t kTiledPairsPerExpertPlain = 24;

// E = 128, top-8, N = 2048, K = 4096, Q4_K; M = 8, 128 and 512 tokens (docs/data/cuda-experts.csv). `matvec` is
// measured at M = 8 and extrapolated by pairs. Below their thresholds `stream` and `wgmma` are extrapolated by the
// experts that are hit, from M = 32 (169 us for 111 experts) and M = 256 (247 us for 128). `matvec_mxfp4` is MXFP4's
// time at M = 8.
namespace mul_mat_id {
inline constexpr LoadCosts kMatvec{73.3, 1173, 4691};
inline constexpr LoadCosts kMatvecMxfp4{68.9, 1102, 4410};
inline constexpr LoadCosts kStream{80, 237, 484};
inline constexpr LoadCosts kTiles{102, 247, 286};
}  // namespace mul_mat_id

// The grouped form: `matvec` is only for weights that `stream` cannot read, whatever the number of pairs. Few and some
// are M = 32 (256 pairs): `stream` measured, `matvec` extrapolated by pairs, `wgmma` not measured.
namespace mul_mm_id {
inline constexpr LoadCosts kMatvec{293, 293, 4691};
inline constexpr LoadCosts kMatvecMxfp4{276, 276, 4410};
inline constexpr LoadCosts kStream{169, 169, 484};
inline constexpr LoadCosts kTiles{340, 340, 286};
}  // namespace mul_mm_id

// `matvec_mxfp4` needs this many bytes of weights that are read, one matrix for each pair: 3.6 us against 3.2 us of
// `matvec` at 4.5 MB (E = 256, 512 x 2048, M = 1), 11.1 us against 12.0 us at 36 MB (M = 8;
// docs/notes/expert-matmul-cuda.md).
inline constexpr std::int64_t kMatvecMxfp4Bytes = 8 << 20;

// ---- linear: rows

inline constexpr std::int64_t kMatvecRows = 8;
inline constexpr std::int64_t kTiledRows = 24;

// 2048 x 2048, BF16; 1, 16 and 1024 rows. Measured (docs/notes/expert-matmul-cuda-tiled.md): `matvec` and `cublas` at 1
// row, `cublas` and `wgmma` at 1024, `cublas` (10 us), `stream` (20 us) and `wgmma` (23 us) at 64. The rest is
// extrapolated from these.
namespace linear {
inline constexpr LoadCosts kMatvec{7.7, 22, 1400};
inline constexpr LoadCosts kMatvecMxfp4{7.4, 21, 1300};
inline constexpr LoadCosts kCublas{8.7, 9, 21};
inline constexpr LoadCosts kStream{18, 18, 320};
inline constexpr LoadCosts kTiles{23, 23, 36};
}  // namespace linear

// ---- moe_ffn: tokens, and pairs of token and slot

// Tokens up to which `matvec` is the fastest: 172 us at 32; 251 us at 48, where `stream` takes 237 us.
inline constexpr std::int64_t kMatvecTokens = 32;
// Pairs per expert, on average, from which `wgmma` is the fastest: it takes 481 us at 24, `stream` 480 us.
inline constexpr std::int64_t kTiledPairsPerExpertOfFfn = 24;

// E = 256, top-8, hidden 2048, inner 512 Q4_K, shared 512 Q8_0; 32, 128 and 2048 tokens (docs/data/cuda-moe.csv,
// docs/notes/expert-matmul-cuda.md). Measured: `matvec` at 32, `stream` and `steps` at 128, `wgmma` at 2048. The rest is
// extrapolated by tokens, from 48 to 768. `few` counts for `matvec` alone: the order of the others depends on pairs.
namespace moe_ffn {
inline constexpr LoadCosts kMatvec{172, 689, 11000};
inline constexpr LoadCosts kTiles{390, 390, 621};
inline constexpr LoadCosts kStream{266, 266, 780};
inline constexpr LoadCosts kSteps{348, 348, 828};
}  // namespace moe_ffn

}  // namespace experts

}  // namespace thalweg::cu::tuning
