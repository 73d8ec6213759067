#pragma once

// The consumer warpgroups of the tiled matmul (tiled_sm90.h).

#include <cstdint>
#include <type_traits>

#include "cuda/common/async_copy.h"
#include "cuda/common/cluster.h"
#include "cuda/common/elements.h"
#include "cuda/common/mbarrier.h"
#include "cuda/common/mma.h"
#include "cuda/common/wgmma.h"
#include "cuda/experts/tiled_shapes_sm90.h"

namespace thalweg::cu::sm90 {

// The rings as consumers access them.
struct ConsumerRings {
  const std::uint8_t* weights;
  std::uint32_t tokens;
  MbarrierArray weights_full, weights_empty, tokens_full, tokens_empty, rows_full, rows_empty;
  const TileRows* rows;
  std::uint8_t* token_ring;

  // Of a cluster's tile, where its tokens were.
  __device__ float* sums() const { return reinterpret_cast<float*>(token_ring); }
};

__device__ inline float silu(float x) { return x / (1.0F + __expf(-x)); }

// Stores the sums of a thread as f32: rows lane / 4 and lane / 4 + 8 of the warp's sixteen, columns 8 j + 2 (lane % 4)
// and the next.
template <int kWidth>
__device__ void store_floats(const TiledMatmul& args, const TileWork& work, const TileRows& rows, float factor,
                             float2 bias, const float (&sum)[kWidth / 2], int first_row, int lane) {
  const int n = work.first_n + first_row + lane / 4;
  const bool low = n < args.n;
  const bool high = n + 8 < args.n;
#pragma unroll
  for (int i = 0; i < kWidth / 4; ++i) {
    const int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
    if (column >= work.tokens.count) continue;
    float* to = static_cast<float*>(args.y) + rows.y[column] + n;
    const float scale = factor * rows.factor[column];
    if (low) to[0] = fmaf(sum[i / 2 * 4 + i % 2], scale, bias.x);
    if (high) to[8] = fmaf(sum[i / 2 * 4 + 2 + i % 2], scale, bias.y);
  }
}

// The same as 16-bit T, eight tokens at a time: transposed, so that a lane has two neighbors of a token in each half of
// the sixteen rows; neighboring lanes exchange halves, and four store a token's sector of 32 bytes.
template <class T, int kWidth>
__device__ void store_halves(const TiledMatmul& args, const TileWork& work, const TileRows& rows, float factor,
                             float2 bias, const float (&sum)[kWidth / 2], int first_row, int lane) {
  const bool odd = lane % 2 != 0;
  const int n = work.first_n + first_row + (odd ? 8 : 0) + lane % 4 / 2 * 4;
  auto* const y = static_cast<std::uint16_t*>(args.y) + n;
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
    const float2 scale = {factor * rows.factor[8 * j + lane % 4 * 2], factor * rows.factor[8 * j + lane % 4 * 2 + 1]};
    const std::uint32_t low =
        transposed(pack<T>(fmaf(sum[4 * j], scale.x, bias.x), fmaf(sum[4 * j + 1], scale.y, bias.x)));
    const std::uint32_t high =
        transposed(pack<T>(fmaf(sum[4 * j + 2], scale.x, bias.y), fmaf(sum[4 * j + 3], scale.y, bias.y)));
    const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, odd ? low : high, 1);
    const uint2 four = odd ? uint2{other, high} : uint2{low, other};
    const int column = 8 * j + lane / 4;
    if (column >= work.tokens.count) continue;
    std::uint16_t* const to = y + rows.y[column];
    if (args.y_fours) {
      if (n < args.n) *reinterpret_cast<uint2*>(to) = four;
      continue;
    }
    if (n < args.n) to[0] = static_cast<std::uint16_t>(four.x);
    if (n + 1 < args.n) to[1] = static_cast<std::uint16_t>(four.x >> 16);
    if (n + 2 < args.n) to[2] = static_cast<std::uint16_t>(four.y);
    if (n + 3 < args.n) to[3] = static_cast<std::uint16_t>(four.y >> 16);
  }
}

template <int kWidth>
__device__ void store_products(const TiledMatmul& args, const TileWork& work, const TileRows& rows, float factor,
                               const float (&sum)[kWidth / 2], int first_row, int lane) {
  const int n = work.first_n + first_row + lane / 4;
  const auto bias_of = [&](int row) { return args.bias != nullptr && row < args.n ? args.bias[row] : 0.0F; };
  const float2 bias = {bias_of(n), bias_of(n + 8)};
  if (args.y_dtype == DType::kF32) {
    store_floats<kWidth>(args, work, rows, factor, bias, sum, first_row, lane);
  } else if (args.y_dtype == DType::kBF16) {
    store_halves<__nv_bfloat16, kWidth>(args, work, rows, factor, bias, sum, first_row, lane);
  } else {
    store_halves<__half, kWidth>(args, work, rows, factor, bias, sum, first_row, lane);
  }
}

// Stores silu(gate) * up, staged, with zeros in the columns beyond N of the last run. Two lanes exchange values, so
// that each stores a pair of neighboring columns.
template <int kWidth>
__device__ void store_gated(const TiledMatmul& args, const TileWork& work, const std::int64_t* rows,
                            const float (&sum)[kWidth / 2], int first_row, int lane) {
  const int n = work.first_n + first_row / 2 + lane / 4;
  const bool odd = lane / 4 % 2 != 0;
  const int index = staged_index(n & ~1);
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
    const float first = n < args.n ? silu(sum[4 * j]) * sum[4 * j + 2] : 0.0F;
    const float second = n < args.n ? silu(sum[4 * j + 1]) * sum[4 * j + 3] : 0.0F;
    // Even rows keep the first token, odd rows the second.
    const float other = __shfl_xor_sync(0xFFFFFFFFU, odd ? first : second, 4);
    const std::uint32_t packed = odd ? pack<__nv_bfloat16>(other, second) : pack<__nv_bfloat16>(first, other);
    const int column = 8 * j + lane % 4 * 2 + (odd ? 1 : 0);
    if (column >= work.tokens.count) continue;
    *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(args.y) + rows[column] + index) = packed;
  }
}

template <bool kGated, int kWidth>
__device__ __forceinline__ void store_tile(const TiledMatmul& args, const TileWork& work, const TileRows& rows,
                                           float factor, const float (&sum)[kWidth / 2], int first_row, int lane) {
  if constexpr (kGated) {
    store_gated<kWidth>(args, work, rows.y, sum, first_row, lane);
  } else {
    store_products<kWidth>(args, work, rows, factor, sum, first_row, lane);
  }
}

// Of sums[token][row]: a warp's stores go to different banks.
template <int kGroups>
constexpr int kSumPitch = TiledBlock<kGroups>::kTileRows + 4;

// Stores the first `count` of four neighbors.
template <class T>
__device__ void store_some(T* to, float4 x, int count, bool aligned) {
  if (aligned && count >= 4) return store_four(to, x);
  if (count > 0) to[0] = from_f32<T>(x.x);
  if (count > 1) to[1] = from_f32<T>(x.y);
  if (count > 2) to[2] = from_f32<T>(x.z);
  if (count > 3) to[3] = from_f32<T>(x.w);
}

// Adds the sums of a cluster's blocks in their order, sums[token][row], and stores those of the block's share of rows.
template <int kGroups, int kBlocks>
__device__ void add_sums(const TiledMatmul& args, const TileWork& work, const TileRows& rows, const float* sums,
                         float factor) {
  constexpr int kThreads = kGroups * kWarpgroup;
  constexpr int kFours = TiledBlock<kGroups>::kTileRows / kBlocks / 4;  // of a token
  constexpr int kLoads = 8;                                             // at a time
  const int first_row = static_cast<int>(blockIdx.x) % kBlocks * kFours * 4;
  const int items = work.tokens.count * kFours;
  const auto bias_of = [&](int n) { return args.bias != nullptr && n < args.n ? args.bias[n] : 0.0F; };
  for (int begin = static_cast<int>(threadIdx.x) - kWarpgroup; begin < items; begin += kThreads * kLoads / kBlocks) {
    float4 theirs[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int item = min(begin + i / kBlocks * kThreads, items - 1);
      const float* const from = sums + item / kFours * kSumPitch<kGroups> + first_row + item % kFours * 4;
      theirs[i] = load_four_from_block(from, static_cast<unsigned>(i % kBlocks));
    }
#pragma unroll
    for (int i = 0; i < kLoads; i += kBlocks) {
      const int item = begin + i / kBlocks * kThreads;
      if (item >= items) break;
      float4 total = theirs[i];
#pragma unroll
      for (int block = 1; block < kBlocks; ++block) {
        const float4 more = theirs[i + block];
        total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
      }
      const int token = item / kFours;
      const int n = work.first_n + first_row + item % kFours * 4;
      const float scale = factor * rows.factor[token];
      total = {fmaf(total.x, scale, bias_of(n)), fmaf(total.y, scale, bias_of(n + 1)),
               fmaf(total.z, scale, bias_of(n + 2)), fmaf(total.w, scale, bias_of(n + 3))};
      const std::int64_t at = rows.y[token] + n;
      if (args.y_dtype == DType::kF32) {
        store_some(static_cast<float*>(args.y) + at, total, args.n - n, false);
      } else if (args.y_dtype == DType::kBF16) {
        store_some(static_cast<Bf16*>(args.y) + at, total, args.n - n, args.y_fours);
      } else {
        store_some(static_cast<F16*>(args.y) + at, total, args.n - n, args.y_fours);
      }
    }
  }
}

// Of a tile whose columns a cluster shares.
template <int kGroups, int kWidth>
__device__ void store_shared(const TiledMatmul& args, const TileWork& work, const TileRows& rows, float* sums,
                             float factor, const float (&sum)[kWidth / 2], int first_row, int lane) {
  static_assert(kMostSharedTokens * kSumPitch<kGroups> * sizeof(float) <= 4 * 16384);
  named_barrier(1, kGroups * kWarpgroup);  // all products have read the tokens, which the sums replace
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    sums[column * kSumPitch<kGroups> + first_row + lane / 4 + i % 4 / 2 * 8] = sum[i];
  }
  cluster_arrive();
  cluster_wait();
  if (args.tile_blocks == 2) {
    add_sums<kGroups, 2>(args, work, rows, sums, factor);
  } else if (args.tile_blocks == 4) {
    add_sums<kGroups, 4>(args, work, rows, sums, factor);
  } else {
    add_sums<kGroups, 8>(args, work, rows, sums, factor);
  }
  // Others read the sums of this block, which must not end before.
  cluster_arrive();
  cluster_wait();
}

// Unpacks the left operands of the four products of panel `half` of a run: rows lane / 4 (low) and lane / 4 + 8 (high).
template <bool kHalves, class Weights>
__device__ __forceinline__ void unpack_panel(const Weights& low, const Weights& high, int half,
                                             std::uint32_t (&a)[4][4]) {
#pragma unroll
  for (int eight = 0; eight < 2; ++eight) {
    std::uint32_t low_pairs[4];
    std::uint32_t high_pairs[4];
    low.template eight<kHalves>(2 * half + eight, low_pairs);
    high.template eight<kHalves>(2 * half + eight, high_pairs);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[2 * eight + i / 2][i % 2 * 2] = low_pairs[i];
      a[2 * eight + i / 2][i % 2 * 2 + 1] = high_pairs[i];
    }
  }
}

// Multiplies a tile: unpacks the weights of its rows, half a run of columns at a time, while the products of the half
// before run; then stores the sums.
template <DType kType, class X, bool kGated, int kGroups, int kWidth>
__device__ void multiply_tile(const TiledMatmul& args, const TileWork& work, const ConsumerRings& rings,
                              RingStage& weights_at, RingStage& tokens_at, RingStage& rows_at) {
  using Ring = WeightRing<kType>;
  using Shape = TiledBlock<kGroups>;
  using Shared = TiledShared<kType, kGroups>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = (static_cast<int>(threadIdx.x) - kWarpgroup) / 32 * 16;
  const int row = first_row + lane / 4;
  const auto row_index = [&](int of_row) {  // in a stage
    if (kGated || args.period <= 1) return of_row;
    return of_row % args.period * (Shape::kTileRows / args.period) + of_row / args.period;
  };
  const auto phase_of = [&](int of_row) {  // the row's address, modulo 16
    if (Ring::kAlign == 16 || args.period == 1) return std::uint32_t{0};
    const WeightRow<kGated> at(of_row, work.first_n);
    const WeightView& weight = at.is_up ? args.up : args.weight;
    return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(
        weight.data + work.tokens.expert * weight.expert_stride + at.n * weight.row_stride));
  };
  const auto zero = static_cast<std::uint32_t>((row | args.k) >> 31);
  LaneWeights<kType> low(row_index(row) * args.pitch, phase_of(row), lane % 4, zero);
  LaneWeights<kType> high(row_index(row + 8) * args.pitch, phase_of(row + 8), lane % 4, zero);

  constexpr bool kHalves = std::is_same_v<X, __half>;
  // F16 and BF16 weights are loaded straight into the registers of the left operand. The compiler would load the next
  // ones while products still read these, so the loop waits for all products.
  constexpr bool kLoadedOperand = kType == DType::kBF16 || (kType == DType::kF16 && kHalves);
  constexpr int kPanels = Shared::panels(kWidth);
  constexpr int kRuns = Ring::kStageColumns / kStagedRun;
  constexpr int kStagePanels = Ring::kStageColumns / kTileColumns;
  constexpr int kRunPanels = kStagedRun / kTileColumns;
  constexpr int kSharedPanels =
      kPanels < kStagePanels ? kPanels : kStagePanels;  // of a stage of weights in one of tokens
  // Reads the weights of the next run before multiplying these: faster for MXFP4, slower for formats whose packed
  // weights need more registers.
  constexpr bool kEarly = kType == DType::kMXFP4 && kWidth <= 32;
  const ColumnShare<kType, kGated> share(args);
  const auto release = [&](int stage) {
    if (stage >= 0 && lane == 0) rings.tokens_empty[stage].arrive();
  };
  const auto read_run = [&](int k_stage, int run) {
    if (run == 0) rings.weights_full[weights_at.index].wait(weights_at.parity);
    const std::uint8_t* stage = rings.weights + weights_at.index * (Shape::kTileRows * args.pitch);
    low.read(stage, k_stage, run);
    high.read(stage, k_stage, run);
  };
  const auto release_weights = [&] {
    __syncwarp();
    if (lane == 0) rings.weights_empty[weights_at.index].arrive();
    weights_at.advance(args.weight_stages);
  };

  float sum[kWidth / 2];
  std::uint32_t tokens = 0;  // address of the panel
  int before = -1;           // the stage of tokens whose last products still run
  if (kEarly) read_run(share.begin, 0);
  for (int k_stage = share.begin; k_stage < share.end; ++k_stage) {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      if (run > 0 && k_stage * Ring::kStageColumns + run * kStagedRun >= args.k) {
        if (kEarly) release_weights();
        break;
      }
      if (!kEarly) read_run(k_stage, run);
#pragma unroll
      for (int half = 0; half < kRunPanels; ++half) {
        std::uint32_t a[4][4];
        unpack_panel<kHalves>(low, high, half, a);
        const bool last = half == kRunPanels - 1;
        if (last && kEarly && run + 1 < kRuns) {
          read_run(k_stage, run + 1);  // weights beyond K are not used
        } else if (last && kEarly) {
          release_weights();
          if (k_stage + 1 < share.end) read_run(k_stage + 1, 0);
        }
        const int stage_panel = kRunPanels * run + half;
        const int panel = (k_stage - share.begin) * kStagePanels + stage_panel;
        if (stage_panel % kSharedPanels == 0 && panel % kPanels == 0) {
          rings.tokens_full[tokens_at.index].wait(tokens_at.parity);
          fence_proxy_async();
          tokens = rings.tokens + static_cast<std::uint32_t>(tokens_at.index * Shared::kTokenStageBytes);
        } else {
          tokens += static_cast<std::uint32_t>(Shared::kTokenStageBytes / kPanels);
        }
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          wgmma<X>(sum, a[step], describe_rows(tokens, step * 32), panel + step > 0 ? 1 : 0);
        }
        wgmma_commit();
        if (kLoadedOperand && last) {
          wgmma_wait<0>();
        } else {
          wgmma_wait<1>();
        }
        release(before);
        before = -1;
        if ((stage_panel + 1) % kSharedPanels == 0 && (panel + 1) % kPanels == 0) {
          before = tokens_at.index;
          tokens_at.advance(Shared::kTokenStages);
        }
      }
    }
    if (!kEarly) release_weights();
  }
  wgmma_wait<0>();
  pin(sum);
  release(before);
  if (share.panels % kPanels != 0) {
    release(tokens_at.index);
    tokens_at.advance(Shared::kTokenStages);
  }
  rings.rows_full[rows_at.index].wait(rows_at.parity);
  const TileRows& rows = rings.rows[rows_at.index];
  constexpr float kFactor = kHalves ? 1.0F / kHalfFactor<kType> : 1.0F;
  if constexpr (!kGated && kWidth <= kMostSharedTokens) {
    if (args.tile_blocks > 1) {
      store_shared<kGroups, kWidth>(args, work, rows, rings.sums(), kFactor, sum, first_row, lane);
    } else {
      store_tile<kGated, kWidth>(args, work, rows, kFactor, sum, first_row, lane);
    }
  } else {
    store_tile<kGated, kWidth>(args, work, rows, kFactor, sum, first_row, lane);
  }
  __syncwarp();
  if (lane == 0) rings.rows_empty[rows_at.index].arrive();
  rows_at.advance(kRowStages);
}

}  // namespace thalweg::cu::sm90
