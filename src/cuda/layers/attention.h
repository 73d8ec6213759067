#pragma once

// What the kernels of attention share on the host and on the device: arguments, query rows, the cache's rows in shared
// memory, and the end of a row.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "core/kernel.h"
#include "cuda/common/async_copy.h"
#include "cuda/common/mma.h"
#include "cuda/common/warp.h"
#include "cuda/device.h"
#include "cuda/gated_delta/chunk_table.h"
#include "cuda/layers/cache_places.h"

namespace thalweg::cu {

struct AttentionCall {
  Elements q, gate, o;  // [T,HQ,D]
  CacheView k, v;
  CacheTable table;
  ChunkTable tiles;  // of tokens
  int heads = 0;     // HQ
  int group = 1;     // query heads of a key head
  int width = 0;     // D
  float scale = 0.0F;
  // For kernels that split the context; rows are (token, head) pairs.
  int splits = 1;
  int short_splits = 0;         // at most `splits`; see split_positions()
  float* statistics = nullptr;  // [T,HQ,splits,2]: maximum in powers of two, and sum of the weights
  float* partials = nullptr;    // [T,HQ,splits,D]: sums of weighted values
};

// The positions of each split of a context, which blocks compute from the device's values: kSplitStep, one step of each
// warp of `decode` where heads are 256 wide, if that makes at most short_splits of them; else a multiple of
// kSplitRound, whole steps of all warps with every width.
constexpr int kSplitStep = 64;
constexpr int kSplitRound = 128;

__device__ inline int split_positions(const AttentionCall& p, int length) {
  if (length <= p.short_splits * kSplitStep) return kSplitStep;
  const int even = (length + p.splits - 1) / p.splits;
  return max(kSplitRound, (even + kSplitRound - 1) / kSplitRound * kSplitRound);
}

// Tokens of one sequence times the query heads of a key head: row r is token begin + r / group.
struct AttentionTile {
  CachedSequence sequence;
  std::int64_t begin;  // first token
  int rows;            // in use; 0: none
  int first_visible;   // positions that the first token sees
  int visible;         // and that the last one sees
};

// All lanes of a warp call it, and get the same.
__device__ inline AttentionTile find_tile(const AttentionCall& p, std::int64_t i) {
  AttentionTile tile{};
  const ChunkSpan chunk = find_chunk(p.tiles, i);
  if (chunk.length == 0) return tile;
  tile.sequence = find_cached(p.table, chunk.sequence);
  tile.begin = chunk.begin;
  tile.rows = chunk.length * p.group;
  if (tile.sequence.absent) return tile;
  if (!tile.sequence.valid) tile.rows = 0;
  tile.first_visible =
      tile.sequence.length - tile.sequence.fresh + static_cast<int>(chunk.begin - tile.sequence.begin) + 1;
  tile.visible = tile.first_visible + chunk.length - 1;
  return tile;
}

// Positions [begin, end) of a split that a tile sees: none from the split behind its last one on, whose results the
// kernel that merges them does not ask for.
struct SplitRange {
  int begin;
  int end;
};
__device__ inline SplitRange split_range(const AttentionCall& p, const AttentionTile& tile, int split) {
  const int positions = split_positions(p, tile.sequence.length);
  const std::int64_t begin = static_cast<std::int64_t>(split) * positions;
  if (begin >= tile.visible) return {tile.visible, tile.visible};
  return {static_cast<int>(begin), static_cast<int>(min(begin + positions, std::int64_t{tile.visible}))};
}

__device__ inline float attention_gate(float x) { return __fdividef(1.0F, 1.0F + __expf(-x)); }

// The rows of an absent sequence.
__device__ inline void zero_rows(const AttentionCall& p, const AttentionTile& tile, int key_head, int thread,
                                 int threads) {
  for (int i = thread; i < tile.rows * p.width; i += threads) {
    const int row = i / p.width;
    p.o.store(p.o.offset(tile.begin + row / p.group, key_head * p.group + row % p.group) + (i - row * p.width), 0.0F);
  }
}

// ---- query rows in shared memory, in the cache's 16-bit type T

// kRows swizzled rows, D in tiles of 64 columns; zeros beyond the tile's rows. factors[row] turns a product into a
// power of two; it is positive, since a negative scale changes the sign of q instead. A row of f16 is scaled so that
// its largest element is in [1,2). Each warp has rows of its own.
template <class T, int D, int kRows>
__device__ void load_queries(const AttentionCall& p, const AttentionTile& tile, int key_head, std::uint8_t* to,
                             float* factors, int warp, int warps) {
  constexpr int kPerLane = D / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int row = warp; row < kRows; row += warps) {
    float x[kPerLane] = {};
    if (row < tile.rows) {
      const std::int64_t offset =
          p.q.offset(tile.begin + row / p.group, key_head * p.group + row % p.group) + lane * kPerLane;
      with_type(p.q.dtype, [&]<class X>(X) {
        const X* from = static_cast<const X*>(p.q.data) + offset;
        if constexpr (kPerLane == 2) {
          const float2 two = load_two(from);
          x[0] = two.x, x[1] = two.y;
        } else {
#pragma unroll
          for (int i = 0; i < kPerLane; i += 4) {
            const float4 four = load_four(from + i);
            x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
          }
        }
      });
    }
    constexpr float kLog2E = 1.4426950408889634F;
    float factor = fabsf(p.scale) * kLog2E;
    float multiplier = p.scale < 0.0F ? -1.0F : 1.0F;
    if constexpr (std::is_same_v<T, __half>) {
      float largest = 0.0F;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) largest = fmaxf(largest, fabsf(x[i]));
#pragma unroll
      for (int distance = 1; distance < kWarpSize; distance *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, distance));
      }
      const std::uint32_t exponent = min(__float_as_uint(largest) >> 23, 253U);
      if (p.q.dtype != DType::kF16 && exponent > 0) {
        multiplier *= __uint_as_float((254U - exponent) << 23);
        factor *= __uint_as_float(exponent << 23);
      }
    }
    std::uint32_t words[kPerLane / 2];
#pragma unroll
    for (int i = 0; i < kPerLane / 2; ++i) words[i] = pack<T>(x[2 * i] * multiplier, x[2 * i + 1] * multiplier);
    const int column = lane * kPerLane;
    std::uint8_t* at =
        to + column / kTileColumns * (kRows * 128) + swizzled(row, column % kTileColumns / 8) + column % 8 * 2;
    if constexpr (kPerLane == 2) {
      *reinterpret_cast<std::uint32_t*>(at) = words[0];
    } else if constexpr (kPerLane == 4) {
      *reinterpret_cast<uint2*>(at) = {words[0], words[1]};
    } else {
      *reinterpret_cast<uint4*>(at) = {words[0], words[1], words[2], words[3]};
    }
    // With a scale of 0, masked products must not become NaN.
    if (lane == 0) factors[row] = fmaxf(factor, 1e-30F);
  }
}

// ---- rows of the cache in shared memory

// Starts to copy positions first..first+kKeys-1 of a key head, as kKeys swizzled rows; zeros from `end` on.
template <int D, int kKeys, int kThreads>
__device__ void copy_positions(const AttentionCall& p, const CachedSequence& sequence, const CacheView& cache,
                               int key_head, int first, int end, std::uint32_t to, int thread) {
  constexpr int kVectors = D / 8;
  const auto* data = static_cast<const std::uint16_t*>(cache.data) + key_head * cache.strides[2];
  static_assert(kKeys * kVectors % kThreads == 0);
#pragma unroll 4
  for (int n = 0; n < kKeys * kVectors / kThreads; ++n) {
    const int row = (n * kThreads + thread) / kVectors;
    const int vector = (n * kThreads + thread) % kVectors;
    const int position = first + row;
    const std::int64_t offset = position < end ? cache_offset(p.table, sequence, cache, position) : -1;
    copy_16_bytes(to + static_cast<std::uint32_t>(vector / 8 * (kKeys * 128)) + swizzled(row, vector % 8),
                  data + (offset < 0 ? 0 : offset) + vector * 8, offset >= 0);
  }
}

// ---- products of a warp's 16 rows; fragments as in common/mma.h

// Operand a of rows row..row+15 and columns 16 step..16 step+15 of a tile of 64 columns.
__device__ inline void load_operand(std::uint32_t (&a)[4], std::uint32_t rows, int row, int step) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int vector = 2 * step + lane / 16;
  load_blocks(a, rows + swizzled(row + lane % 16, vector));
}

// products[16,kKeys] = q k^T
template <class T, int D, int kRows, int kKeys>
__device__ void multiply_keys(float (&products)[kKeys / 8][4], std::uint32_t queries, int row, std::uint32_t keys) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (auto& block : products) block[0] = block[1] = block[2] = block[3] = 0.0F;
    // Not unrolled: the sums of wide heads leave no registers for so many addresses.
#pragma unroll 1
  for (int columns = 0; columns < D / kTileColumns; ++columns) {
#pragma unroll
    for (int step = 0; step < kTileColumns / 16; ++step) {
      std::uint32_t a[4];
      load_operand(a, queries, row, step);
#pragma unroll
      for (int block = 0; block < kKeys / 16; ++block) {
        std::uint32_t b[4];
        load_blocks(b, keys + swizzled(16 * block + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
        multiply_add<T>(products[2 * block], a, b[0], b[1]);
        multiply_add<T>(products[2 * block + 1], a, b[2], b[3]);
      }
    }
    queries += kRows * 128;
    keys += kKeys * 128;
  }
}

// sums[16,D] += weights[16,kKeys] v
template <class T, int D, int kKeys>
__device__ void add_values(float (&sums)[D / 8][4], const float (&weights)[kKeys / 8][4], std::uint32_t values) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    const std::uint32_t a[4] = {pack<T>(weights[2 * step][0], weights[2 * step][1]),
                                pack<T>(weights[2 * step][2], weights[2 * step][3]),
                                pack<T>(weights[2 * step + 1][0], weights[2 * step + 1][1]),
                                pack<T>(weights[2 * step + 1][2], weights[2 * step + 1][3])};
    const int row = 16 * step + lane % 16;
#pragma unroll
    for (int block = 0; block < D / 16; ++block) {
      const int vector = 2 * block + lane / 16;
      std::uint32_t b[4];
      load_blocks_transposed(
          b, values + static_cast<std::uint32_t>(vector / 8 * (kKeys * 128)) + swizzled(row, vector % 8));
      multiply_add<T>(sums[2 * block], a, b[0], b[1]);
      multiply_add<T>(sums[2 * block + 1], a, b[2], b[3]);
    }
  }
}

__device__ inline float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The online softmax of a lane's two rows, lane / 4 and lane / 4 + 8. Maxima are of products before the factor.
struct OnlineSoftmax {
  float maxima[2] = {-INFINITY, -INFINITY};
  float totals[2] = {};  // of this lane's columns

  // Turns products into weights, and returns by which the sums so far shrink.
  template <int kBlocks>
  __device__ float2 update(float (&products)[kBlocks][4], const float (&factors)[2]) {
    float shrink[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = maxima[i];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        top = fmaxf(top, fmaxf(products[block][2 * i], products[block][2 * i + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFU, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFU, top, 2));
      // All keys masked so far: weights are exp2(-inf), not exp2(-inf + inf).
      const float base = top == -INFINITY ? 0.0F : top * factors[i];
      shrink[i] = exp2_approx(fmaf(maxima[i], factors[i], -base));
      maxima[i] = top;
      totals[i] *= shrink[i];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int j = 2 * i; j < 2 * i + 2; ++j) {
          products[block][j] = exp2_approx(fmaf(products[block][j], factors[i], -base));
          totals[i] += products[block][j];
        }
      }
    }
    return {shrink[0], shrink[1]};
  }

  __device__ float total(int i) const { return warp_sum<4>(totals[i]); }
};

// Sets products of positions from `visible` on to -inf; `first` is the position of column 0.
template <int kBlocks>
__device__ inline void mask_products(float (&products)[kBlocks][4], int first, int visible_low, int visible_high) {
  const int column = first + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (column + 8 * block + j % 2 >= (j < 2 ? visible_low : visible_high)) products[block][j] = -INFINITY;
    }
  }
}

template <int kBlocks>
__device__ inline void shrink_sums(float (&sums)[kBlocks][4], float2 by) {
#pragma unroll
  for (auto& block : sums) {
    block[0] *= by.x, block[1] *= by.x;
    block[2] *= by.y, block[3] *= by.y;
  }
}

// ---- the end of a row

__device__ inline void store_two(float* to, float2 x) { *reinterpret_cast<float2*>(to) = x; }
__device__ inline void store_two(Bf16* to, float2 x) {
  *reinterpret_cast<std::uint32_t*>(to) = pack<__nv_bfloat16>(x.x, x.y);
}
__device__ inline void store_two(F16* to, float2 x) { *reinterpret_cast<std::uint32_t*>(to) = pack<__half>(x.x, x.y); }

// Stores kCount pairs of neighbors of an output row, the columns first + kStep i, times the gate.
template <int kStep, int kCount, class Value>
__device__ void finish_row(const AttentionCall& p, std::int64_t token, int head, int first, Value value) {
  float2 gates[kCount];
#pragma unroll
  for (float2& gate : gates) gate = {1.0F, 1.0F};
  if (p.gate.defined()) {
    with_type(p.gate.dtype, [&]<class X>(X) {
      const X* from = static_cast<const X*>(p.gate.data) + p.gate.offset(token, head) + first;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float2 x = load_two(from + kStep * i);
        gates[i] = {attention_gate(x.x), attention_gate(x.y)};
      }
    });
  }
  with_type(p.o.dtype, [&]<class X>(X) {
    X* to = static_cast<X*>(p.o.data) + p.o.offset(token, head) + first;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float2 x = value(i);
      store_two(to + kStep * i, {x.x * gates[i].x, x.y * gates[i].y});
    }
  });
}

// Where a split's results of a row are among the statistics and partial sums.
__device__ inline std::int64_t split_index(const AttentionCall& p, std::int64_t token, int head, int split) {
  return (token * p.heads + head) * p.splits + split;
}

// ---- kernels, by file

// What a kernel of 16-bit operands needs of its arguments; empty if all is there.
std::string mma_reason(const AttentionArgs& args);
AttentionCall attention_call(const AttentionArgs& args, int tile_rows);
// Positions that a sequence can have: all that the host knows of the lengths.
std::int64_t capacity_of(const AttentionArgs& args);
// Tokens of a tile with so many rows, and the tiles that hold the tokens however they are shared out to sequences.
inline int tile_tokens(const AttentionArgs& args, int rows) {
  const auto group = static_cast<int>(args.q.dim(1) / args.k_cache.dim(2));
  return group < rows ? rows / group : 1;
}
inline std::int64_t most_tiles(const AttentionArgs& args, int rows) {
  return args.q.dim(0) / tile_tokens(args, rows) + args.lengths.dim(0);
}

namespace plain_attention {
std::string supports(const AttentionArgs& args, const Stream& stream);
void run(const AttentionArgs& args, Workspace workspace, const Stream& stream);
double cost(const AttentionArgs& args, const Stream& stream);
}  // namespace plain_attention

namespace mma_attention {
std::string supports(const AttentionArgs& args, const Stream& stream);
void run(const AttentionArgs& args, Workspace workspace, const Stream& stream);
double cost(const AttentionArgs& args, const Stream& stream);
}  // namespace mma_attention

namespace wgmma_attention {
std::string supports(const AttentionArgs& args, const Stream& stream);
std::size_t workspace(const AttentionArgs& args, const Stream& stream);
void run(const AttentionArgs& args, Workspace workspace, const Stream& stream);
double cost(const AttentionArgs& args, const Stream& stream);
}  // namespace wgmma_attention

namespace sm90 {
// Head sizes 128 and 256, tiles of kPrefillRows rows.
constexpr int kPrefillRows = 128;
void launch_attention_prefill(const AttentionCall& call, DType cache, unsigned tiles, const DeviceProperties& device,
                              cudaStream_t stream);
}  // namespace sm90

namespace decode_attention {
std::string supports(const AttentionArgs& args, const Stream& stream);
std::size_t workspace(const AttentionArgs& args, const Stream& stream);
void run(const AttentionArgs& args, Workspace workspace, const Stream& stream);
double cost(const AttentionArgs& args, const Stream& stream);
}  // namespace decode_attention

}  // namespace thalweg::cu
