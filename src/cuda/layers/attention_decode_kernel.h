#pragma once

// Few new tokens per sequence over a long context: bound by memory, so that the context is split over blocks.
//
// Roles: a block has up to 16 rows (tokens of one sequence times the query heads of a key head) and one split of the
//   context; each of its kDecodeWarps warps takes steps of kStepKeys positions in turn, with a softmax of its own. The
//   warps' results are merged at the end; with several splits a second kernel merges those.
// Shared memory: the queries, and for each warp a ring of kDecodeSlots tiles of keys or values; of a cache of Q8_0 as
//   they are, and the tile of f16 that the next of them is unpacked to.
// Pipeline: a warp copies its own tiles with cp.async, keys and values in turn, kDecodeSlots - 1 ahead; warps meet only
//   at the end.

#include "cuda/common/pdl.h"
#include "cuda/layers/attention_decode.h"

namespace thalweg::cu {

// A warp's share of the split: sums, and the softmax of its lanes' rows.
template <class Cache, int D>
struct DecodeWarp {
  using T = OperandOf<Cache>;
  static constexpr bool kPacked = std::is_same_v<Cache, PackedQ8>;
  static constexpr int kKeys = decode_step_keys(D);
  static constexpr int kSlotBytes = decode_slot_bytes(D, kPacked);
  static constexpr int kBytes = decode_warp_bytes(D, kPacked);

  OnlineSoftmax softmax;
  float sums[D / 8][4] = {};

  // `memory`: the warp's tiles. prepare(factors) brings the queries, while the first tiles are under way.
  template <class Prepare>
  __device__ void walk(const AttentionCall& p, const AttentionTile& tile, int key_head, int begin, int end,
                       std::uint32_t queries, std::uint8_t* memory, float (&factors)[2], Prepare&& prepare) {
    const std::uint32_t ring = shared_address(memory);
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    constexpr int kStride = kDecodeWarps * kKeys;
    const int first = begin + warp * kKeys;
    const int steps = first < end ? (end - first + kStride - 1) / kStride : 0;
    // Tile i is the keys of step i / 2 if even, else its values.
    const auto copy = [&](int i, std::uint32_t slot) {
      const CacheView& cache = i % 2 == 0 ? p.k : p.v;
      const int at = first + i / 2 * kStride;
      if (i < 2 * steps) {
        if constexpr (kPacked) {
          copy_packed_rows<D, kKeys>(p.table, tile.sequence, cache, key_head, at, end, ring + slot * kSlotBytes, lane);
        } else {
          copy_positions<D, kKeys, kWarpSize>(p, tile.sequence, cache, key_head, at, end, ring + slot * kSlotBytes,
                                              lane);
        }
      }
      commit_copies();  // an empty group too, so that their number shows which have arrived
    };
    const auto visible = [&](int row) { return tile.first_visible + min(row, tile.rows - 1) / p.group; };
    const int visible_low = min(end, visible(lane / 4));
    const int visible_high = min(end, visible(lane / 4 + 8));
    for (int i = 0; i < kDecodeSlots - 1; ++i) copy(i, static_cast<std::uint32_t>(i));
    prepare(factors);
    std::uint32_t slot = 0;
    // Waits for the next tile, and starts to copy the one that replaces the tile before it.
    const auto next = [&](int i) {
      wait_for_copies<kDecodeSlots - 2>();
      __syncwarp();
      const std::uint32_t here = slot;
      copy(i + kDecodeSlots - 1, here == 0 ? kDecodeSlots - 1 : here - 1);
      slot = here + 1 == kDecodeSlots ? 0 : here + 1;
      if constexpr (kPacked) {
        constexpr int kRing = kDecodeSlots * kSlotBytes;
        unpack_rows<D, kKeys>(memory + here * kSlotBytes, memory + kRing, lane);
        __syncwarp();
        return ring + kRing;
      } else {
        return ring + here * kSlotBytes;
      }
    };
    for (int step = 0; step < steps; ++step) {
      const int at = first + step * kStride;
      float weights[kKeys / 8][4];
      multiply_keys<T, D, kDecodeRows, kKeys>(weights, queries, 0, next(2 * step));
      // Rows see at least first_visible positions.
      if (at + kKeys > min(end, tile.first_visible)) mask_products(weights, at, visible_low, visible_high);
      shrink_sums(sums, softmax.update(weights, factors));
      add_values<T, D, kKeys>(sums, weights, next(2 * step + 1));
    }
    wait_for_copies<0>();
  }
};

// Statistics of the warps' rows.
struct DecodeMerge {
  float maxima[kDecodeWarps][kDecodeRows];  // as powers of two
  float totals[kDecodeWarps][kDecodeRows];
};

template <class Cache, int D>
__global__ void __launch_bounds__(kDecodeWarps* kWarpSize)
    attention_decode_kernel(const __grid_constant__ AttentionCall p) {
  constexpr int kThreads = kDecodeWarps * kWarpSize;
  using Warp = DecodeWarp<Cache, D>;
  using T = typename Warp::T;
  static_assert(Warp::kBytes >= kDecodeRows * D * static_cast<int>(sizeof(float)));
  extern __shared__ std::uint8_t dynamic_shared[];
  __shared__ float factors_of_rows[kDecodeRows];
  __shared__ DecodeMerge merge;
  pdl_trigger_and_wait();
  const AttentionTile tile = find_tile(p, blockIdx.z);
  if (tile.rows == 0) return;
  const int split = static_cast<int>(blockIdx.x);
  const int key_head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  if (tile.sequence.absent) {
    if (split == 0 && p.splits == 1) zero_rows(p, tile, key_head, thread, kThreads);
    return;  // the second kernel finds absent sequences itself
  }
  const auto [begin, end] = split_range(p, tile, split);
  if (begin >= end) return;

  const std::uint32_t misaligned = shared_address(dynamic_shared) % 1024;
  std::uint8_t* const shared = dynamic_shared + (misaligned == 0 ? 0 : 1024 - misaligned);
  std::uint8_t* const tiles = shared + kDecodeRows * D * 2;
  float factors[2];
  Warp own;
  own.walk(p, tile, key_head, begin, end, shared_address(shared), tiles + warp * Warp::kBytes, factors,
           [&](float(&of_rows)[2]) {
             load_queries<T, D, kDecodeRows>(p, tile, key_head, shared, factors_of_rows, warp, kDecodeWarps);
             __syncthreads();
             of_rows[0] = factors_of_rows[lane / 4];
             of_rows[1] = factors_of_rows[lane / 4 + 8];
           });

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float total = own.softmax.total(i);
    if (lane % 4 == 0) {
      merge.maxima[warp][lane / 4 + 8 * i] = own.softmax.maxima[i] * factors[i];
      merge.totals[warp][lane / 4 + 8 * i] = total;
    }
  }
  // The tiles are free when every warp has passed; a warp's sums [16,D] go to its own.
  __syncthreads();
  constexpr int kWarpFloats = Warp::kBytes / static_cast<int>(sizeof(float));
  float* const all_sums = reinterpret_cast<float*>(tiles);
#pragma unroll
  for (int block = 0; block < D / 8; ++block) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* to = all_sums + warp * kWarpFloats + (lane / 4 + 8 * i) * D + 8 * block + lane % 4 * 2;
      *reinterpret_cast<float2*>(to) = {own.sums[block][2 * i], own.sums[block][2 * i + 1]};
    }
  }
  __syncthreads();
  for (int row = warp; row < tile.rows; row += kDecodeWarps) {
    float top = -INFINITY;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) top = fmaxf(top, merge.maxima[w][row]);
    float shares[kDecodeWarps];
    float total = 0.0F;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      shares[w] = top == -INFINITY ? 0.0F : exp2_approx(merge.maxima[w][row] - top);
      total = fmaf(shares[w], merge.totals[w][row], total);
    }
    const auto sum_of = [&](int column) {
      float2 sum = {0.0F, 0.0F};
#pragma unroll
      for (int w = 0; w < kDecodeWarps; ++w) {
        const float2 x = *reinterpret_cast<const float2*>(all_sums + w * kWarpFloats + row * D + column);
        sum.x = fmaf(shares[w], x.x, sum.x);
        sum.y = fmaf(shares[w], x.y, sum.y);
      }
      return sum;
    };
    const std::int64_t token = tile.begin + row / p.group;
    const int head = key_head * p.group + row % p.group;
    if (p.splits == 1) {
      const float share = 1.0F / total;
      finish_row<2 * kWarpSize, D / (2 * kWarpSize)>(p, token, head, 2 * lane, [&](int i) {
        const float2 sum = sum_of(2 * lane + 2 * kWarpSize * i);
        return float2{sum.x * share, sum.y * share};
      });
      continue;
    }
    const std::int64_t index = split_index(p, token, head, split);
    if (lane == 0) *reinterpret_cast<float2*>(p.statistics + 2 * index) = {top, total};
#pragma unroll
    for (int column = 2 * lane; column < D; column += 2 * kWarpSize) {
      *reinterpret_cast<float2*>(p.partials + index * D + column) = sum_of(column);
    }
  }
}

// Merges the splits of a row, (token, query head), by a block: its warps take splits in turn.
template <int D>
__global__ void __launch_bounds__(kCombineWarps* kWarpSize)
    attention_combine_kernel(const __grid_constant__ AttentionCall p) {
  constexpr int kPairs = D / (2 * kWarpSize);
  __shared__ float2 warp_sums[kCombineWarps][D / 2];
  __shared__ float warp_totals[kCombineWarps];
  pdl_trigger_and_wait();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t row = blockIdx.x;
  const std::int64_t token = row / p.heads;
  const int head = static_cast<int>(row - token * p.heads);
  const CachedSequence sequence = find_cached(p.table, sequence_of_token(p.table, token));
  const std::int64_t i = token - sequence.begin;
  if (i < 0 || i >= sequence.fresh || !(sequence.valid || sequence.absent)) return;
  if (sequence.absent) {
    for (int column = static_cast<int>(threadIdx.x); column < D; column += kCombineWarps * kWarpSize) {
      p.o.store(p.o.offset(token, head) + column, 0.0F);
    }
    return;
  }
  // The splits that this token sees into: their blocks have written its results.
  const int positions = split_positions(p, sequence.length);
  const int visible = sequence.length - sequence.fresh + static_cast<int>(i) + 1;
  const int used = min(p.splits, (visible + positions - 1) / positions);
  const float2* const statistics = reinterpret_cast<const float2*>(p.statistics) + row * p.splits;
  float top = -INFINITY;
  for (int s = lane; s < used; s += kWarpSize) top = fmaxf(top, statistics[s].x);
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFU, top, distance));
  }
  float2 sums[kPairs] = {};
  float total = 0.0F;
#pragma unroll 8
  for (int s = warp; s < used; s += kCombineWarps) {
    const float2 of_split = statistics[s];
    const float share = exp2_approx(of_split.x - top);
    total = fmaf(share, of_split.y, total);
    const float* from = p.partials + (row * p.splits + s) * D + 2 * lane;
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      const float2 x = *reinterpret_cast<const float2*>(from + 2 * kWarpSize * n);
      sums[n].x = fmaf(share, x.x, sums[n].x);
      sums[n].y = fmaf(share, x.y, sums[n].y);
    }
  }
#pragma unroll
  for (int n = 0; n < kPairs; ++n) warp_sums[warp][lane + kWarpSize * n] = sums[n];
  if (lane == 0) warp_totals[warp] = total;
  __syncthreads();
  const int pair = static_cast<int>(threadIdx.x);
  if (pair >= D / 2) return;
  float2 sum = {0.0F, 0.0F};
  total = 0.0F;
#pragma unroll
  for (int w = 0; w < kCombineWarps; ++w) {
    total += warp_totals[w];
    sum.x += warp_sums[w][pair].x;
    sum.y += warp_sums[w][pair].y;
  }
  finish_row<2, 1>(p, token, head, 2 * pair, [&](int) { return float2{sum.x / total, sum.y / total}; });
}

template <class Cache>
AttentionDecodeKernel attention_decode_kernel_of(int width) {
  if (width == 64) return attention_decode_kernel<Cache, 64>;
  if (width == 128) return attention_decode_kernel<Cache, 128>;
  return attention_decode_kernel<Cache, 256>;
}

}  // namespace thalweg::cu
