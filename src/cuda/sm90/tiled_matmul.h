#pragma once

// The tiled matmul on Hopper. A persistent block takes tiles of 128 weight rows by up to 256 tokens:
//
//   two copying warps     weights as they lie in the file, 256 of each row at a time, into a ring
//   two copying warps     the tile's rows of staged activations, gathered, 64 columns at a time, into another ring
//   two warpgroups        unpack the 64 weight rows each owns straight into the left operand of the tensor cores, in
//                         registers, while the products of the columns before are under way
//
// A weight row is unpacked by the four lanes that need it, 32 neighbouring weights each: the staged order of the
// activations (tiled_matmul.h) makes up for that. No weight is unpacked twice for the same tile, none is written to
// shared memory unpacked.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "cuda/device/async_copy.h"
#include "cuda/device/barrier.h"
#include "cuda/device/elements.h"
#include "cuda/device/fragments.h"
#include "cuda/device/launch_order.h"
#include "cuda/device/weights.h"
#include "cuda/device/wgmma_bf16.h"
#include "cuda/tiled_matmul.h"

namespace thalweg::cu::sm90 {

constexpr int kWarpgroup = 128;
constexpr int kTiledThreads = 3 * kWarpgroup;
constexpr int kTileRows = 128;    // of weights
constexpr int kCopyThreads = 64;  // of each kind
constexpr int kConsumerWarps = 8;

// How weights of a format pass through shared memory.
template <DType kType>
struct WeightRing {
  static constexpr bool kBlocks = is_block_format(kType);
  static constexpr int kBlock = dtype_info(kType).block_size;
  static constexpr int kBlockBytes = dtype_info(kType).block_bytes;
  static constexpr int kUnit = kBlocks ? 256 : 128;  // weights of a row per stage
  static constexpr int kUnitBytes = static_cast<int>(bytes_of(kType, kUnit));
  // Blocks begin at multiples of kAlign; what is copied, at multiples of 16.
  static constexpr int kAlign = kBlocks ? PackedWeights<kType>::kAlign : 16;
  static constexpr int kPieces = (kUnitBytes + (kAlign < 16 ? 16 - kAlign : 0) + 15) / 16;
  // Rows are so far apart that four lanes of eight rows spread over the banks.
  static constexpr int kPitch = [] {
    int pitch = 16 * kPieces;
    while (pitch % 128 != 32 && pitch % 128 != 96) pitch += 16;
    return pitch;
  }();
  static constexpr int kStageBytes = kTileRows * kPitch;
};

constexpr int kTokenStageBytes = kTileTokens * 128;  // 64 columns of bf16
constexpr int kTokenStages = 4;
constexpr int kMostSharedBytes = 227 * 1024 - 2048;  // less barriers and row numbers
constexpr int kAlignmentBytes = 1024;

template <DType kType>
struct TiledShared {
  static constexpr int kLeft = kMostSharedBytes - kAlignmentBytes - kTokenStages * kTokenStageBytes;
  static constexpr int kWeightStages =
      kLeft / WeightRing<kType>::kStageBytes < 8 ? kLeft / WeightRing<kType>::kStageBytes : 8;
  static_assert(kWeightStages >= 2);
  static constexpr int kBytes =
      kAlignmentBytes + kTokenStages * kTokenStageBytes + kWeightStages * WeightRing<kType>::kStageBytes;
};

struct TiledBarriers {
  std::uint64_t tokens_full[kTokenStages];
  std::uint64_t tokens_empty[kTokenStages];
  std::uint64_t weights_full[8];
  std::uint64_t weights_empty[8];
};

// Arrives at a barrier of the block once all copies that this thread has begun are complete.
__device__ inline void arrive_after_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// A place in a ring and how often it has been around.
template <int kStages>
struct RingPlace {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ inline int staged(int columns) { return (columns + kStagedRun - 1) / kStagedRun * kStagedRun; }

// The tile of weight rows and tokens that a block works on.
struct TileWork {
  TokenTile tokens;
  int first_n;
};

// Walks through a block's tiles.
template <bool kGated>
struct TileLoop {
  static constexpr int kColumns = kGated ? kTileRows / 2 : kTileRows;
  std::int64_t at;
  std::int64_t end;
  int n_tiles;
  TileWork work;

  __device__ explicit TileLoop(const TiledMatmul& args)
      : at(blockIdx.x), n_tiles(((kGated ? staged(args.n) : args.n) + kColumns - 1) / kColumns) {
    end = args.tiles != nullptr ? *args.tile_count : (args.num_rows + args.tile_tokens - 1) / args.tile_tokens;
    end *= n_tiles;
    read(args);
  }
  __device__ bool valid() const { return at < end; }
  __device__ void advance(const TiledMatmul& args) {
    at += gridDim.x;
    read(args);
  }

 private:
  __device__ void read(const TiledMatmul& args) {
    if (!valid()) return;
    const int tile = static_cast<int>(at / n_tiles);
    work.first_n = static_cast<int>(at % n_tiles) * kColumns;
    if (args.tiles != nullptr) {
      const int4 loaded = *reinterpret_cast<const int4*>(args.tiles + tile);
      work.tokens = {loaded.x, loaded.y, loaded.z, 0};
    } else {
      const int begin = tile * args.tile_tokens;
      work.tokens = {0, begin, min(args.tile_tokens, args.num_rows - begin), 0};
    }
  }
};
template <bool kGated, class Body>
__device__ void for_each_tile(const TiledMatmul& args, Body body) {
  for (TileLoop<kGated> tiles(args); tiles.valid(); tiles.advance(args)) body(tiles.work);
}

// Row of the tile's weights: a matrix and a row in it. With gates, eight rows of one matrix and eight of the other take
// turns, so that a thread gets the sums of both for the same output.
template <bool kGated>
struct WeightRow {
  bool is_up;
  int n;

  __device__ WeightRow(int row, int first_n)
      : is_up(kGated && row % 16 >= 8), n(kGated ? first_n + row / 16 * 8 + row % 8 : first_n + row) {}
};

template <DType kType, bool kGated>
__device__ void copy_weights(const TiledMatmul& args, std::uint32_t ring, std::uint32_t full, std::uint32_t empty) {
  using Ring = WeightRing<kType>;
  constexpr int kStages = TiledShared<kType>::kWeightStages;
  const int thread = static_cast<int>(threadIdx.x) % kCopyThreads;
  const int units = (args.k + Ring::kUnit - 1) / Ring::kUnit;
  const std::int64_t row_bytes = static_cast<std::int64_t>(args.k / Ring::kBlock) * Ring::kBlockBytes;
  RingPlace<kStages> place;
  for_each_tile<kGated>(args, [&](const TileWork& work) {
    for (int unit = 0; unit < units; ++unit) {
      barrier_wait(empty + 8 * place.stage, place.parity ^ 1);
      const std::uint32_t to = ring + static_cast<std::uint32_t>(place.stage * Ring::kStageBytes);
#pragma unroll 3
      for (int i = thread; i < kTileRows * Ring::kPieces; i += kCopyThreads) {
        const int row = i / Ring::kPieces;
        const int piece = i % Ring::kPieces;
        const WeightRow<kGated> at(row, work.first_n);
        if (at.n >= args.n) continue;
        const WeightView& weight = at.is_up ? args.up : args.weight;
        const std::uint8_t* begin = weight.data + work.tokens.expert * weight.expert_stride + at.n * weight.row_stride;
        const std::uint8_t* from = begin + static_cast<std::int64_t>(unit) * Ring::kUnitBytes;
        const auto phase = Ring::kAlign < 16 ? static_cast<int>(reinterpret_cast<std::uintptr_t>(from) & 15) : 0;
        const std::uint8_t* piece_from = from - phase + 16 * piece;
        const std::int64_t left = begin + row_bytes - piece_from;
        const int valid = left >= 16 ? 16 : left > 0 ? static_cast<int>(left) : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         to + static_cast<std::uint32_t>(row * Ring::kPitch + 16 * piece)),
                     "l"(valid > 0 ? piece_from : weight.data), "r"(valid)
                     : "memory");
      }
      arrive_after_copies(full + 8 * place.stage);
      place.advance();
    }
  });
}

template <bool kGated>
__device__ void copy_tokens(const TiledMatmul& args, std::uint32_t ring, int* x_rows, std::uint32_t full,
                            std::uint32_t empty) {
  constexpr int kPairsOfWarps = 1;  // the named barrier of these threads
  const int thread = static_cast<int>(threadIdx.x) % kCopyThreads;
  const int piece = thread % 8;
  const int first_row = thread / 8;  // and every eighth from there
  const std::int64_t columns = staged(args.k);
  const auto steps = static_cast<int>(columns / kTileColumns);
  const std::uint32_t to = ring + swizzled(first_row, piece);
  RingPlace<kTokenStages> place;
  for_each_tile<kGated>(args, [&](const TileWork& work) {
    for (int i = thread; i < work.tokens.count; i += kCopyThreads) {
      const int at = work.tokens.begin + i;
      x_rows[i] = (args.rows != nullptr ? args.rows[at] : at) / args.pairs_per_x_row;
    }
    named_barrier(kPairsOfWarps, kCopyThreads);
    const std::uint16_t* from = args.x + piece * 8;
    for (int step = 0; step < steps; ++step) {
      barrier_wait(empty + 8 * place.stage, place.parity ^ 1);
      const std::uint32_t stage = to + static_cast<std::uint32_t>(place.stage * kTokenStageBytes);
#pragma unroll 4
      for (int row = first_row; row < work.tokens.count; row += 8) {
        copy_16_bytes(stage + static_cast<std::uint32_t>((row - first_row) * 128), from + x_rows[row] * columns, true);
      }
      arrive_after_copies(full + 8 * place.stage);
      place.advance();
      from += kTileColumns;
    }
    named_barrier(kPairsOfWarps, kCopyThreads);
  });
}

// What a consumer knows of the rings.
struct ConsumerRings {
  const std::uint8_t* weights;
  std::uint32_t tokens;
  std::uint32_t weights_full, weights_empty, tokens_full, tokens_empty;
};

__device__ inline float silu(float x) { return x / (1.0F + __expf(-x)); }

// The sums of one thread to their place: rows lane / 4 and that + 8 of its warp's sixteen, columns 8 j + 2 (lane % 4)
// and the next.
template <int kWidth>
__device__ void store_products(const TiledMatmul& args, const TileWork& work, const float (&sum)[kWidth / 2],
                               int first_row, int lane) {
  const int n = work.first_n + first_row + lane / 4;
  const bool low = n < args.n;
  const bool high = n + 8 < args.n;
  const float low_bias = args.bias != nullptr && low ? args.bias[n] : 0.0F;
  const float high_bias = args.bias != nullptr && high ? args.bias[n + 8] : 0.0F;
  with_type(args.y_dtype, [&]<class T>(T) {
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i) {
      const int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (column >= work.tokens.count) continue;
      const int at = work.tokens.begin + column;
      const int pair = args.rows != nullptr ? args.rows[at] : at;
      T* to = static_cast<T*>(args.y) + pair / args.slots * args.y_token_stride +
              pair % args.slots * args.y_slot_stride + n;
      if (low) to[0] = from_f32<T>(sum[i / 2 * 4 + i % 2] + low_bias);
      if (high) to[8] = from_f32<T>(sum[i / 2 * 4 + 2 + i % 2] + high_bias);
    }
  });
}

// silu(gate) * up, staged; zeros in the columns that fill up the last run. Two lanes exchange their neighbours, so that
// each has a pair.
template <int kWidth>
__device__ void store_gated(const TiledMatmul& args, const TileWork& work, const float (&sum)[kWidth / 2],
                            int first_row, int lane) {
  const int n = work.first_n + first_row / 2 + lane / 4;
  const bool odd = lane / 4 % 2 != 0;
  const int columns = staged(args.n);
  const int place = staged_place(n & ~1);
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
    const float first = n < args.n ? silu(sum[4 * j]) * sum[4 * j + 2] : 0.0F;
    const float second = n < args.n ? silu(sum[4 * j + 1]) * sum[4 * j + 3] : 0.0F;
    // The even lane keeps the first token, the odd one the second.
    const float other = __shfl_xor_sync(0xFFFFFFFFU, odd ? first : second, 4);
    const std::uint32_t packed = odd ? pack<__nv_bfloat16>(other, second) : pack<__nv_bfloat16>(first, other);
    const int column = 8 * j + lane % 4 * 2 + (odd ? 1 : 0);
    if (column >= work.tokens.count) continue;
    const int at = work.tokens.begin + column;
    const std::int64_t pair = args.rows != nullptr ? args.rows[at] : at;
    *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(args.y) + pair * columns + place) = packed;
  }
}

template <DType kType, bool kGated, int kWidth>
__device__ void multiply_tile(const TiledMatmul& args, const TileWork& work, const ConsumerRings& rings,
                              RingPlace<TiledShared<kType>::kWeightStages>& weights_at,
                              RingPlace<kTokenStages>& tokens_at) {
  using Ring = WeightRing<kType>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = (static_cast<int>(threadIdx.x) - kWarpgroup) / 32 * 16;
  const int row = first_row + lane / 4;
  const auto phase_of = [&](int of_row) {  // of the row's beginning
    if constexpr (Ring::kAlign == 16) return std::uint32_t{0};
    const WeightRow<kGated> at(of_row, work.first_n);
    const WeightView& weight = at.is_up ? args.up : args.weight;
    return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(
        weight.data + work.tokens.expert * weight.expert_stride + at.n * weight.row_stride));
  };
  const std::uint32_t low_phase = phase_of(row);
  const std::uint32_t high_phase = phase_of(row + 8);
  const std::uint32_t done = rings.tokens_empty;

  float sum[kWidth / 2];
  int before = -1;  // the stage of tokens whose products are under way
  const int units = (args.k + Ring::kUnit - 1) / Ring::kUnit;
  for (int unit = 0; unit < units; ++unit) {
    barrier_wait(rings.weights_full + 8 * weights_at.stage, weights_at.parity);
    const std::uint8_t* stage = rings.weights + weights_at.stage * Ring::kStageBytes + row * Ring::kPitch;
    const auto begun = static_cast<std::uint32_t>(unit * Ring::kUnitBytes);
    const std::uint8_t* low_unit = stage + (low_phase + begun) % 16;
    const std::uint8_t* high_unit = stage + 8 * Ring::kPitch + (high_phase + begun) % 16;
#pragma unroll
    for (int run = 0; run < Ring::kUnit / kStagedRun; ++run) {
      if (unit * Ring::kUnit + run * kStagedRun >= args.k) break;
      const int part = 4 * run + lane % 4;  // of 32 weights
      const int offset = Ring::kBlock == 256 ? 0 : part * (32 / Ring::kBlock * Ring::kBlockBytes);
      const auto low = PackedWeights<kType>::read(low_unit + offset, part);
      const auto high = PackedWeights<kType>::read(high_unit + offset, part);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t a[4][4];
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
          std::uint32_t low_pairs[4];
          std::uint32_t high_pairs[4];
          low.eight(2 * half + eight, low_pairs);
          high.eight(2 * half + eight, high_pairs);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            a[2 * eight + i / 2][i % 2 * 2] = low_pairs[i];
            a[2 * eight + i / 2][i % 2 * 2 + 1] = high_pairs[i];
          }
        }
        barrier_wait(rings.tokens_full + 8 * tokens_at.stage, tokens_at.parity);
        fence_for_async_reads();
        const std::uint32_t tokens = rings.tokens + static_cast<std::uint32_t>(tokens_at.stage * kTokenStageBytes);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          wgmma_bf16(sum, a[step], describe_rows(tokens, step * 32), unit + run + half + step > 0 ? 1 : 0);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (before >= 0 && lane == 0) barrier_arrive(done + 8 * before);
        before = tokens_at.stage;
        tokens_at.advance();
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(rings.weights_empty + 8 * weights_at.stage);
    weights_at.advance();
  }
  wgmma_wait<0>();
  pin(sum);
  if (lane == 0) barrier_arrive(done + 8 * before);
  if constexpr (kGated) {
    store_gated<kWidth>(args, work, sum, first_row, lane);
  } else {
    store_products<kWidth>(args, work, sum, first_row, lane);
  }
}

template <DType kType, bool kGated>
__global__ void __launch_bounds__(kTiledThreads, 1) tiled_matmul(const __grid_constant__ TiledMatmul args) {
  using Shared = TiledShared<kType>;
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ TiledBarriers barriers;
  __shared__ int x_rows[kTileTokens];
  const std::uint32_t offset = (1024 - shared_address(shared) % 1024) % 1024;
  const std::uint32_t tokens = shared_address(shared) + offset;
  const std::uint32_t weights = tokens + kTokenStages * kTokenStageBytes;
  const std::uint32_t tokens_full = shared_address(barriers.tokens_full);
  const std::uint32_t tokens_empty = shared_address(barriers.tokens_empty);
  const std::uint32_t weights_full = shared_address(barriers.weights_full);
  const std::uint32_t weights_empty = shared_address(barriers.weights_empty);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kTokenStages; ++i) {
      barrier_init(tokens_full + 8 * i, kCopyThreads);
      barrier_init(tokens_empty + 8 * i, kConsumerWarps);
    }
    for (int i = 0; i < Shared::kWeightStages; ++i) {
      barrier_init(weights_full + 8 * i, kCopyThreads);
      barrier_init(weights_empty + 8 * i, kConsumerWarps);
    }
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_launch_order();
  if (threadIdx.x < kWarpgroup) {
    give_up_registers<56>();
    if (threadIdx.x < kCopyThreads) {
      copy_weights<kType, kGated>(args, weights, weights_full, weights_empty);
    } else {
      copy_tokens<kGated>(args, tokens, x_rows, tokens_full, tokens_empty);
    }
    wait_for_copies<0>();
  } else {
    take_registers<224>();
    const ConsumerRings rings{shared + offset + kTokenStages * kTokenStageBytes,
                              tokens,
                              weights_full,
                              weights_empty,
                              tokens_full,
                              tokens_empty};
    RingPlace<Shared::kWeightStages> weights_at;
    RingPlace<kTokenStages> tokens_at;
    // Tiles come in the order of their classes.
    TileLoop<kGated> tiles(args);
    const auto multiply_class = [&]<int kWidth, int kLess>() {
      while (tiles.valid() && tiles.work.tokens.count > kLess) {
        multiply_tile<kType, kGated, kWidth>(args, tiles.work, rings, weights_at, tokens_at);
        tiles.advance(args);
      }
    };
    multiply_class.template operator()<256, 192>();
    multiply_class.template operator()<192, 128>();
    multiply_class.template operator()<128, 96>();
    multiply_class.template operator()<96, 64>();
    multiply_class.template operator()<64, 32>();
    multiply_class.template operator()<32, 0>();
  }
}

template <DType kType>
void launch_tiled_matmul_of(const TiledMatmul& args, bool gated, const DeviceProperties& device, cudaStream_t stream,
                            std::string_view operation) {
  const auto launch = [&](auto kernel) {
    allow_shared_memory(reinterpret_cast<const void*>(kernel), TiledShared<kType>::kBytes, operation);
    launch_early(kernel, dim3(static_cast<unsigned>(device.multiprocessors)), kTiledThreads, TiledShared<kType>::kBytes,
                 device, stream, operation, args);
  };
  gated ? launch(tiled_matmul<kType, true>) : launch(tiled_matmul<kType, false>);
}

// Each format is compiled in a file with others that take as long.
#define THALWEG_TILED_MATMUL(type)                                                                                   \
  template void launch_tiled_matmul_of<DType::type>(const TiledMatmul&, bool, const DeviceProperties&, cudaStream_t, \
                                                    std::string_view)

}  // namespace thalweg::cu::sm90
