#pragma once

// Prefill by mma.sync: flash attention over ragged sequences, keys and values straight from the cache.
//
// Roles: a block has up to 16 kWarps rows, tokens of one sequence times the query heads of a key head, so that they
//   share its keys; a warp has 16 of them. Blocks of later tokens, which see more keys, start first.
// Shared memory: the queries, a tile of 64 keys, a tile of 64 values, all swizzled.
// Pipeline: cp.async. The values of a tile arrive during its products with q, the next keys during the softmax and the
//   products with the values. Of a cache of Q8_0 each tile is read when it is needed: other blocks hide that.

#include "cuda/common/pdl.h"
#include "cuda/layers/attention_mma.h"
#include "cuda/layers/packed_cache.h"

namespace thalweg::cu {

template <class Cache, int D, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarpSize) attention_mma_kernel(const __grid_constant__ AttentionCall p) {
  using T = OperandOf<Cache>;
  constexpr int kRows = 16 * kWarps;
  constexpr int kKeys = kMmaKeys;
  constexpr int kThreads = kWarps * kWarpSize;
  extern __shared__ std::uint8_t dynamic_shared[];
  __shared__ float factors_of_rows[kRows];
  pdl_trigger_and_wait();
  const AttentionTile tile = find_tile(p, gridDim.x - 1 - blockIdx.x);
  if (tile.rows == 0) return;
  const int key_head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  if (tile.sequence.absent) return zero_rows(p, tile, key_head, thread, kThreads);

  const std::uint32_t misaligned = shared_address(dynamic_shared) % 1024;
  std::uint8_t* const shared = dynamic_shared + (misaligned == 0 ? 0 : 1024 - misaligned);
  const std::uint32_t queries = shared_address(shared);
  const std::uint32_t keys = queries + kRows * D * 2;
  const std::uint32_t values = keys + kKeys * D * 2;
  const auto copy = [&](const CacheView& cache, int first, std::uint32_t to) {
    if constexpr (std::is_same_v<Cache, PackedQ8>) {
      unpack_positions<D, kKeys, kThreads>(p.table, tile.sequence, cache, key_head, first, tile.visible,
                                           shared + (to - queries), thread);
    } else {
      copy_positions<D, kKeys, kThreads>(p, tile.sequence, cache, key_head, first, tile.visible, to, thread);
      commit_copies();
    }
  };
  copy(p.k, 0, keys);
  load_queries<T, D, kRows>(p, tile, key_head, shared, factors_of_rows, warp, kWarps);
  __syncthreads();

  const auto visible = [&](int row) { return tile.first_visible + min(row, tile.rows - 1) / p.group; };
  const int row = 16 * warp + lane / 4;  // and the row 8 further
  const int visible_low = visible(row);
  const int visible_high = visible(row + 8);
  const int visible_first = visible(16 * warp);  // of the warp's rows
  const int visible_last = visible(16 * warp + 15);
  const bool active = 16 * warp < tile.rows;
  const float factors[2] = {factors_of_rows[row], factors_of_rows[row + 8]};
  OnlineSoftmax softmax;
  float sums[D / 8][4] = {};
  for (int first = 0; first < tile.visible; first += kKeys) {
    wait_for_copies<0>();
    __syncthreads();  // the keys are here, and no warp reads the values before them any more
    copy(p.v, first, values);
    float weights[kKeys / 8][4];
    const bool sees = active && first < visible_last;
    if (sees) multiply_keys<T, D, kRows, kKeys>(weights, queries, 16 * warp, keys);
    wait_for_copies<0>();
    __syncthreads();  // the values are here, and no warp reads the keys any more
    if (first + kKeys < tile.visible) copy(p.k, first + kKeys, keys);
    if (sees) {
      if (first + kKeys > visible_first) mask_products(weights, first, visible_low, visible_high);
      shrink_sums(sums, softmax.update(weights, factors));
      add_values<T, D, kKeys>(sums, weights, values);
    }
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float share = 1.0F / softmax.total(i);
    const int own = row + 8 * i;
    if (own >= tile.rows) continue;
    finish_row<8, D / 8>(p, tile.begin + own / p.group, key_head * p.group + own % p.group, lane % 4 * 2,
                         [&](int block) {
                           return float2{sums[block][2 * i] * share, sums[block][2 * i + 1] * share};
                         });
  }
}

template <class Cache>
AttentionMmaKernel attention_mma_kernel_of(int width, int warps) {
  if (width == 64) return attention_mma_kernel<Cache, 64, 8>;
  if (width == 128) return attention_mma_kernel<Cache, 128, 8>;
  return warps == 8 ? attention_mma_kernel<Cache, 256, 8> : attention_mma_kernel<Cache, 256, 4>;
}

}  // namespace thalweg::cu
