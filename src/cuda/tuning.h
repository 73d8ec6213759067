#pragma once

// What the choice between CUDA kernels rests on: costs and thresholds as data, each with the measurement it came from.
// Kernels know nothing of their rivals; a kernel's cost() is computed from the constants here.

#include <cstdint>

namespace thalweg::cu::tuning {

// The rows that a call is planned for with RowHint::kFew and kMany (row_hint.h): a decode step of some sequences, and a
// chunk of a prompt.
constexpr std::int64_t kFewRows = 16;
constexpr std::int64_t kManyRows = 2048;
// Of a kernel that does not honor the hint: more than any other takes.
constexpr double kAgainstHint = 1e12;

namespace gated_delta {

// Times are in microseconds, measured on one H200 (132 multiprocessors); tables of
// docs/notes/gated-delta-rule-cuda-*.md and docs/notes/convolution-and-norm-cuda.md. A tile is 64 rows of one head's
// state; the tiles of a call are those of all sequences. The costs are linear fits, made to cross where the kernels
// were measured to.

// ---- chunk_gated_delta_rule, (HK, HV) = (16, 32), K = V = 128

// wgmma: 12.8, 14.9, 17.6, 23.2, 33.2 us for 1, 2, 4, 8, 16 chunks, where all tiles fit on the device at once.
constexpr double kTwoPassCall = 13.2;
constexpr double kTwoPassChunk = 1.5;
// Where they do not, per chunk and two tiles of one multiprocessor: 684 us for (16, 48) and 378 for (8, 32), four
// sequences of 8192 tokens.
constexpr double kTwoPassValueHead = 3.0;
constexpr double kTwoPassKeyHead = 1.7;
// A chunk of the longest walk where sequences are split, besides the key heads: 213 us for (2, 8), 533 for (8, 32), 419
// for (16, 16) and 725 for (32, 32) with one sequence of 32768 tokens.
constexpr double kTwoPassSplitChunk = 1.35;
// wgmma_fused: 7.3, 9.5, 13.4, 20.7, 35.4 us for 1, 2, 4, 8, 16 chunks, 491 for 256 of (32, 32), two sequences.
constexpr double kFusedCall = 5.75;
constexpr double kFusedChunk = 2.05;
// wgmma_fused_pairs: 102.2 and 355 us for 32 and 128 chunks of (32, 32), four sequences, 338 for 128 of (8, 24).
constexpr double kFusedPairsCall = 12.0;
constexpr double kFusedPairsChunk = 2.5;
// wgmma_by_length: the launch of two that does nothing. Where sequences may be split too, such launches take 10 us;
// more stands here, so that (8, 24) and (16, 32) stay with two passes: 454 and 507 us for two sequences of 16384
// tokens.
constexpr double kByLengthCall = 3.0;
constexpr double kByLengthSplitCall = 40.0;
// Segments of pairs of tiles in one kernel: the shortest, in chunks; how many a walk for outputs goes through, unless
// there are more walks than kFusedManyWalks. Costs: 186, 256 and 393 us for one sequence of 8192, 16384 and 32768
// tokens of (16, 16), segments of 8, 16 and 32 chunks; 247, 380 and 650 us of (32, 32), 16, 32 and 64 chunks.
constexpr int kFusedSegmentChunks = 4;
constexpr int kFusedWalkSegments = 2;
constexpr int kFusedManyWalks = 8;
constexpr double kFusedSplitCall = 110.0;
constexpr double kFusedSplitChunk = 2.14;
// mma in terms of wgmma: 328 and 218 us for one sequence of 8192 tokens.
constexpr double kMmaOverWgmma = 1.5;
// token_by_token: 10692 us for 128 chunks. Counted in whole chunks: for how few tokens it beats the chunk form has not
// been measured, so that the chunk form is taken wherever a kernel supports it.
constexpr double kTokenByTokenChunk = 83.0;

// Segments, from the published table with every length of 8 to 128 chunks. With the best length, each multiprocessor
// has this many tiles of segments.
constexpr int kSegmentTilesPerMultiprocessor = 2;
// The shortest segments, in chunks: kShortSegmentChunks if at most one in kFewTiles multiprocessors has a tile of an
// unsplit sequence, else kSegmentChunks.
constexpr int kShortSegmentChunks = 12;
constexpr int kSegmentChunks = 16;
constexpr int kFewTiles = 8;
// The launches and the chaining of a split, in chunks of one walk.
constexpr int kSegmentLaunchChunks = 24;
// A head that does not decay walks through a segment twice. In quarters of a walk: 13 instead of 8 if two blocks share
// a multiprocessor.
constexpr int kSegmentQuarterWalks = 8;
constexpr int kCrowdedSegmentQuarterWalks = 13;
// The host does not know the lengths of packed sequences. For a split the longest is taken for 3/2 of the average; for
// the choice between kernels, of which some split, for less.
constexpr int kLongestPackedHalves = 3;
constexpr double kLongestPacked = 1.2;

// ---- recurrent_gated_delta_rule, HK 16, HV 32, K = V = 128, f32 states. Rows of states are counted per
// multiprocessor: 31 at batch 1, 1986 at batch 64.

// decode: 4.0 us at batch 1, 73 us at batch 64, 43.3 with states of 16 bits; 11.6 us for each further token at batch
// 64, 1.1 us at batch 1.
constexpr double kDecodeCall = 3.0;
constexpr double kDecodeRow = 0.0353;
constexpr double kDecodeRow16 = 0.0203;
constexpr double kDecodeToken = 1.1;
constexpr double kDecodeRowToken = 0.0058;
// decode_one: 3.1, 18.6, 69 and 265 us at batch 1, 16, 64 and 256; with states of 16 bits 2.7, 37 and 146 us at 1, 64
// and 256.
constexpr double kDecodeOneCall = 2.1;
constexpr double kDecodeOneRow = 0.0336;
constexpr double kDecodeOneRow16 = 0.0178;
// decode_together: 80 and 86 us for 4 and 8 tokens at batch 64, 7.2 us for 8 at batch 1.
constexpr double kTogetherToken = 0.37;
constexpr double kTogetherRowToken = 0.0009;
// registers: 6.2 us at batch 1, 87 us at batch 64; a token as in decode.
constexpr double kRegistersCall = 5.0;
constexpr double kRegistersRow = 0.041;

// Blocks of a launch of decode or registers: as many warps as share the tokens, while this share of the multiprocessors
// has a block.
constexpr int kBusyNumerator = 9;
constexpr int kBusyDenominator = 10;

// ---- gated_delta_prep_step, same heads. Key heads of sequences are counted per multiprocessor: 0.12 at batch 1, 7.8
// at batch 64.

// decode: 5.3, 9.2, 25 and 84 us at batch 1, 4, 16 and 64; with states of 16 bits 4.8 and 70 us at 1 and 64.
constexpr double kStepDecodeCall = 3.9;
constexpr double kStepDecodeKeyHead = 10.5;
constexpr double kStepDecodeKeyHead16 = 8.5;
// split: 5.9, 9.5, 22.7, 76 and 286 us at batch 1, 4, 16, 64 and 256; with states of 16 bits 5.8, 44.5 and 182 us at 1,
// 64 and 256.
constexpr double kStepSplitCall = 4.75;
constexpr double kStepSplitCall16 = 5.2;
constexpr double kStepSplitKeyHead = 9.2;
constexpr double kStepSplitKeyHead16 = 5.1;
// Several tokens: 84, 89 and 110 us for 2, 4 and 8 at batch 64 in split, 110, 145 and 220 in decode, 127, 149 and 185
// in decode_together. At batch 1, where a token waits for the one before, decode takes 6.4, 8.3 and 12.5 us, split 6.7,
// 8.2 and 10.7, decode_together 10, 11 and 13.
constexpr double kStepTogetherCall = 10.5;
constexpr double kStepTogetherToken = 1.5;
constexpr double kStepDecodeToken = 2.0;
constexpr double kStepDecodeWait = 1.05;
constexpr double kStepSplitToken = 0.7;
constexpr double kStepSplitWait = 0.75;
// A snapshot after each token, in any kernel: as many bytes as half a step. 227 and 376 us for 4 and 8 tokens at batch
// 64 in split.
constexpr double kStepSnapshot = 5.0;
// cluster: 6.9 us at batch 1, 99 us at batch 64. block: not measured apart; it uses few multiprocessors.
constexpr double kStepClusterCall = 10.0;
constexpr double kStepClusterKeyHead = 12.0;
constexpr double kStepBlockCall = 20.0;
constexpr double kStepBlockKeyHead = 24.0;

// Row blocks of a head, as many as give this share of the multiprocessors a block: more convolve the same q and k
// again. Two of five in cluster; nine of ten in decode, whose row blocks have at most kStepMaxRows rows. 32 rows
// take 6.0 us at batch 1, 64 and 128 rows 6.3 and 7.9.
constexpr int kClusterBusyNumerator = 2;
constexpr int kClusterBusyDenominator = 5;
constexpr int kStepMaxRows = 128;
// Up to so many rows, decode has four rows to a warp and a thread for each channel.
constexpr int kStepNarrowRows = 32;

// ---- gated_rms_norm, 32 heads of 128, bf16: 6.9 us for 12.6 MB, 42.1 us for 101 MB. rows_strided reads x twice; only
// its predecessor has been measured.

constexpr double kNormCall = 2.0;
constexpr double kNormMegabyte = 0.4;
constexpr double kStridedNormCall = 4.0;
constexpr double kStridedNormMegabyte = 0.6;

// ---- causal_conv1d: tokens of a thread. The longest runs read the window least often; shorter ones until every
// multiprocessor has so many threads.

constexpr int kConvLongestRun = 32;
constexpr int kConvShortestRun = 8;
constexpr int kConvThreadsPerMultiprocessor = 1024;

}  // namespace gated_delta

namespace layers {

// ---- rms_norm: from this width on a block has a row, below it a warp: 38 us instead of 69 for 16384 rows of 1024, 32
// instead of 13 for as many of 128. Up to 1024 rows a block is faster at every width (docs/notes/model-decode-cuda.md),
// but a choice by rows would make a row's bits depend on the number of rows.
constexpr std::int64_t kNormBlockWidth = 1024;
constexpr double kNormUsual = 2.0;
constexpr double kNormOther = 3.0;

}  // namespace layers

namespace attention {

// Microseconds, fitted to measurements on an H100 and an H200 (docs/notes/model-decode-cuda.md, "Which attention
// kernel"). The host knows no lengths: a call is taken to read all positions that its sequences could have. Short
// contexts in large caches keep the order of the kernels.

// A block's 128 rows with one column of one position (wgmma, mma), and 16 rows (decode): 64 positions of 256 columns
// take 1.57, 6 and 2.8 us.
constexpr double kWgmmaCall = 6.4;
constexpr double kWgmmaTile = 1.57 / (64 * 256);
constexpr double kWgmmaMerge = 1.6;  // of a context's splits
// Contexts of Q8_0 to f16 before `wgmma`, and the most of it: 512 MiB.
constexpr double kUnpackCall = 4.0;
constexpr double kUnpackMegaValue = 3.6;
constexpr std::int64_t kMostUnpackedValues = std::int64_t{1} << 28;
constexpr double kMmaCall = 10.0;
constexpr double kMmaTile = 6.0 / (64 * 256);
constexpr double kMmaPacked = 2.5;  // times as much with a cache of Q8_0, each tile of which is unpacked
constexpr double kDecodeCall = 10.0;
constexpr double kDecodeTile = 2.8 / (64 * 256);
// Splits leave so little of a round at best.
constexpr double kDecodeLeastRounds = 1.0 / 36;
// The blocks of decode that the splits are chosen for: rounds of so many blocks on each multiprocessor. Contexts that
// fit into one round in splits of a single step are split so: a step takes a lone warp 4 us.
constexpr std::int64_t kDecodeResidentBlocks = 2;
constexpr std::int64_t kDecodeRounds = 2;
// plain: far slower than any other.
constexpr double kPlain = 1e6;
constexpr double kPlainMegaProduct = 1.0;
// The splits of a context with RowHint::kFew, whatever the batch: 64 sequences have blocks for 15 rounds of the device
// where heads of keys are two, and one sequence of 32,768 positions leaves 32 tiles of 64 to a block.
constexpr int kHintedSplits = 16;

}  // namespace attention

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

// The kernels in f32 for MatmulPrecision::kExact: a second, so that they run only where kExact requires them or no
// other kernel can.
inline constexpr double kExact = 1e6;

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

// Pairs per expert, on average, up to which tiles of `wgmma` have 192 weight rows and at most 64 tokens instead of 128
// and 256: 71 us against 75 us at 4 (512 x 2048), 138 us against 123 us at 64.
inline constexpr std::int64_t kNarrowTilePairsPerExpert = 40;

// ---- linear: rows

inline constexpr std::int64_t kMatvecRows = 8;
inline constexpr std::int64_t kTiledRows = 24;

// Plain formats, 2048 x 2048, BF16; 1, 16 and 1024 rows. Measured (docs/notes/expert-matmul-cuda-tiled.md): `matvec`
// and `cublas` at 1 row, `cublas` and `wgmma` at 1024, `cublas` (10 us), `stream` (20 us) and `wgmma` (23 us) at 64.
// The rest is extrapolated from these.
namespace linear {
inline constexpr LoadCosts kMatvec{7.7, 22, 1400};
inline constexpr LoadCosts kMatvecMxfp4{7.4, 21, 1300};
inline constexpr LoadCosts kCublas{8.7, 9, 21};
inline constexpr LoadCosts kStream{18, 18, 320};
inline constexpr LoadCosts kTiles{23, 23, 36};

// Block formats: microseconds of a call with weights that are not in the cache, fitted to `bench --suite linear` (seven
// matrices of 35B-A3B, 1 to 128 rows). `tiles` counts tiles of 32 weight rows by 256 columns: 128 to 2176 in a layer,
// 62080 of the output matrix.
struct BlockCosts {
  double call;
  double column;      // K
  double tile;        // of the first kFewTiles
  double later_tile;  // of the others
};
inline constexpr double kFewTiles = 4096;
// matvec, for each row: 2.5 to 5.6 us at one row; 17 to 21 us at eight rows of the largest of a layer.
inline constexpr BlockCosts kMatvecBlocks{2.4, 0, 0.0016, 0.0023};
// bytes, of one row: 124 us of the output matrix, 8 of 2176 tiles. The call is stated so that matrices of less than
// some five thousand tiles stay with `matvec`.
inline constexpr BlockCosts kBytesBlocks{2.9, 0, 0.0016, 0.0018};
// split, of up to 8, 16 and 32 rows.
inline constexpr BlockCosts kSplitBlocks[] = {
    {4.1, 0, 0.0022, 0.0035}, {5.2, 0, 0.0030, 0.0062}, {6.6, 0, 0.0062, 0.0080}};
// stream, of up to 16 and 32 rows.
inline constexpr BlockCosts kStreamBlocks[] = {{3, 0.0048, 0.0010, 0.0025}, {3, 0.0060, 0.0022, 0.0044}};
// wgmma.
inline constexpr BlockCosts kTileBlocks{5.5, 0.0053, 0.0012, 0.0037};
inline constexpr double kTileRow = 0.03;  // of the first kTileRows
inline constexpr std::int64_t kTileRows = 256;
// The same where the blocks of a cluster share a tile's columns: for each 256 columns of a block, and each of the first
// kSharedTileRows. 16.1 and 17.1 us for 32 and 64 rows of 8192 x 2048, 12.9 and 16.5 for 64 and 128 of 4096 x 2048,
// 19.0 for 128 of 2048 x 4096. The call takes 2 us less than stated, so that `split`, whose line lies too high there,
// keeps 32 rows of 4096 x 2048.
inline constexpr double kSharedTileCall = 9.0;
inline constexpr double kSharedTileColumn = 0.00034;
inline constexpr double kSharedTileStage = 1.4;
inline constexpr double kSharedTileRow = 0.06;  // of the first kSharedTileRows
inline constexpr std::int64_t kSharedTileRows = 64;
// Blocks of 32 weight rows of `split` that run at once: groups of 32 rows of activations beyond the first are free
// then.
inline constexpr std::int64_t kSplitBlocksAtOnce = 132;
}  // namespace linear

// ---- moe_ffn: tokens, and pairs of token and slot

// Tokens up to which `matvec` is the fastest: 172 us at 32; 251 us at 48, where `stream` takes 237 us.
inline constexpr std::int64_t kMatvecTokens = 32;
// Pairs per expert, on average, from which `wgmma` is the fastest: it takes 481 us at 24, `stream` 480 us.
inline constexpr std::int64_t kTiledPairsPerExpertOfFfn = 24;

// Tokens from which the router's logits are computed by wgmma instead of mma: 91 us against 385 us at 8192 tokens;
// below 256, its blocks of 64 tokens by 256 experts are too few.
inline constexpr std::int64_t kWgmmaRouterTokens = 256;

// E = 256, top-8, hidden 2048, inner 512 Q4_K, shared 512 Q8_0; 32, 128 and 2048 tokens (docs/data/cuda-moe.csv,
// docs/notes/expert-matmul-cuda.md). Measured: `matvec` at 32, `stream` and `steps` at 128, `wgmma` at 2048. The rest
// is extrapolated by tokens, from 48 to 768. `few` counts for `matvec` alone: the order of the others depends on pairs.
namespace moe_ffn {
inline constexpr LoadCosts kMatvec{172, 689, 11000};
// `staged` over `matvec` with one token and with several. A step of 8 layers of the same shapes on an H200: 601 us
// instead of 644 with one token, 767 instead of 746 with two, 1324 instead of 1148 with eight.
inline constexpr double kStagedOne = 0.8;
inline constexpr double kStagedSome = 1.2;
inline constexpr LoadCosts kTiles{390, 390, 621};
inline constexpr LoadCosts kStream{266, 266, 780};
inline constexpr LoadCosts kSteps{348, 348, 828};
// Tokens up to which the shared expert is multiplied by `split` in `stream`: 20 us at 64 instead of 48 by tiles.
inline constexpr std::int64_t kSplitSharedTokens = 64;
// `grouped`: from this many tokens on it is the fastest, as far as it goes; 71 us against 64 us of `matvec` at 8
// tokens, 158, 210 and 269 us at 32, 64 and 128 (down and shared expert Q6_K).
inline constexpr std::int64_t kGroupedTokens = 12;
inline constexpr double kGroupedFew = 180;
inline constexpr double kGrouped = 100;
// Blocks for each multiprocessor below which warps share rows; K tiles that a warp multiplies at least where there are
// enough blocks.
inline constexpr double kGroupedBlocksPerMultiprocessor = 1.5;
inline constexpr int kGroupedSteps = 4;
}  // namespace moe_ffn

}  // namespace experts

}  // namespace thalweg::cu::tuning
