#pragma once

// The tiled matmul on Hopper: persistent blocks, tiles of 128 weight rows by up to 256 tokens or of 192 by up to 64.
//
// Roles: warp 0 finds the rows of the next tiles; warp 1 copies raw weights, by the copy engine where it can read the
// rows; warps 2 and 3 gather staged activations by cp.async; two or three consumer warpgroups unpack 64 weight rows
// each into registers, the left operand of wgmma, while the products of the columns before run.
// Shared memory: TileRows of kRowStages tiles, a ring of activations (64 to 512 columns per stage), a ring of weights
// (256).
// Pipeline: full and empty mbarriers per stage of the three rings.
//
// Four lanes unpack a weight row, 32 consecutive weights each, in the order of the staged activations (token_tiles.h).
// No weight is unpacked twice for a tile, and none passes through shared memory unpacked.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "cuda/common/pdl.h"
#include "cuda/experts/tiled_consumer_sm90.h"
#include "cuda/experts/tiled_producers_sm90.h"
#include "cuda/experts/weight_map_sm90.h"

namespace thalweg::cu::sm90 {

template <DType kType, class X, bool kGated, int kGroups>
__global__ void __launch_bounds__(TiledBlock<kGroups>::kThreads, 1)
    tiled_matmul(const __grid_constant__ TiledMatmul args, const __grid_constant__ WeightMaps maps) {
  using Shape = TiledBlock<kGroups>;
  using Shared = TiledShared<kType, kGroups>;
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ TiledBarriers barriers;
  __shared__ __align__(16) TileRows rows[kRowStages];
  const std::uint32_t offset = (1024 - shared_address(shared) % 1024) % 1024;
  const std::uint32_t tokens = shared_address(shared) + offset;
  const std::uint32_t weights = tokens + Shared::kTokenBytes;
  const MbarrierArray tokens_full{shared_address(barriers.tokens_full)};
  const MbarrierArray tokens_empty{shared_address(barriers.tokens_empty)};
  const MbarrierArray weights_full{shared_address(barriers.weights_full)};
  const MbarrierArray weights_empty{shared_address(barriers.weights_empty)};
  const MbarrierArray rows_full{shared_address(barriers.rows_full)};
  const MbarrierArray rows_empty{shared_address(barriers.rows_empty)};
  if (threadIdx.x == 32 && args.period > 0) {
    prefetch_map(maps.weight);
    if constexpr (kGated) prefetch_map(maps.up);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < kRowStages; ++i) {
      rows_full[i].init(32);
      rows_empty[i].init(kTokenThreads + Shape::kConsumerWarps);
    }
    for (int i = 0; i < Shared::kTokenStages; ++i) {
      tokens_full[i].init(kTokenThreads);
      tokens_empty[i].init(Shape::kConsumerWarps);
    }
    for (int i = 0; i < args.weight_stages; ++i) {
      weights_full[i].init(args.period > 0 ? 1 : 32);
      weights_empty[i].init(Shape::kConsumerWarps);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  pdl_trigger();
  // Tiles of one matrix are known without the kernel that staged its rows, which has waited for all before it and so
  // for the weights: only who reads the rows waits.
  if (args.tiles != nullptr) pdl_wait();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<Shape::kCopyRegisters>();
    if (threadIdx.x < 32) {
      find_tile_rows<kGated, kGroups>(args, rows, rows_full, rows_empty);
    } else if (threadIdx.x < 64 && args.period > 0) {
      if (threadIdx.x == 32)
        copy_weight_boxes<kType, kGated, kGroups>(args, maps, weights, weights_full, weights_empty);
    } else if (threadIdx.x < 64) {
      copy_weights<kType, kGated, kGroups>(args, weights, weights_full, weights_empty);
    } else {
      copy_tokens<kType, kGated, kGroups>(args, tokens, rows, tokens_full, tokens_empty, rows_full, rows_empty);
    }
    wait_for_copies<0>();
  } else {
    setmaxnreg_inc<Shape::kRegisters>();
    const ConsumerRings rings{shared + offset + Shared::kTokenBytes,
                              tokens,
                              weights_full,
                              weights_empty,
                              tokens_full,
                              tokens_empty,
                              rows_full,
                              rows_empty,
                              rows,
                              shared + offset};
    RingStage weights_at;
    RingStage tokens_at;
    RingStage rows_at;
    // Tiles are sorted by class, so that each width has a loop of its own.
    TileLoop<kGated, kGroups> tiles(args);
    const auto multiply_class = [&]<int kWidth, int kLess>() {
      while (tiles.valid() && tiles.work.tokens.count > kLess) {
        for_each_subtile<kGroups>(tiles.work, [&](const TileWork& subtile) {
          multiply_tile<kType, X, kGated, kGroups, kWidth>(args, subtile, rings, weights_at, tokens_at, rows_at);
        });
        tiles.advance(args);
      }
    };
    if constexpr (Shape::kMostTokens == kTileTokens) {
      multiply_class.template operator()<256, 192>();
      multiply_class.template operator()<192, 128>();
      multiply_class.template operator()<128, 96>();
      multiply_class.template operator()<96, 64>();
    }
    multiply_class.template operator()<64, 32>();
    multiply_class.template operator()<32, 0>();
  }
}

// Whether four 16-bit results can be stored at once: rows begin at multiples of 8 bytes, and have multiples of four.
inline bool stores_fours(const TiledMatmul& args) {
  const auto whole = [](std::int64_t elements) { return elements % 4 == 0; };
  return reinterpret_cast<std::uintptr_t>(args.y) % 8 == 0 && whole(args.n) && whole(args.y_token_stride) &&
         whole(args.y_slot_stride);
}

template <DType kType>
void launch_tiled_matmul_of(const TiledMatmul& args, bool gated, const DeviceProperties& device, cudaStream_t stream,
                            std::string_view operation) {
  using Ring = WeightRing<kType>;
  const std::int64_t row_bytes = static_cast<std::int64_t>(args.k / Ring::kBlock) * Ring::kBlockBytes;
  const auto launch = [&]<class X, bool kGated, int kGroups>() {
    using Shape = TiledBlock<kGroups>;
    using Shared = TiledShared<kType, kGroups>;
    constexpr int kBoxRows = kGated ? 8 : Shape::kTileRows;
    TiledMatmul with_maps = args;
    with_maps.y_fours = stores_fours(args);
    WeightMaps maps{};
    const auto make_maps = [&](int align) {
      with_maps.pitch = Shared::pitch(align);
      with_maps.weight_stages =
          std::min(Shared::kWeightBytes / (Shape::kTileRows * with_maps.pitch), kMostWeightStages);
      with_maps.period = make_weight_map(args.weight, args.n, row_bytes, kBoxRows, with_maps.pitch, maps.weight);
      if (kGated && with_maps.period == 1) {
        with_maps.period = make_weight_map(args.up, args.n, row_bytes, kBoxRows, with_maps.pitch, maps.up);
      }
      return with_maps.period == 1;
    };
    // Activations are zero in the columns beyond K of the last run, but weights there must be finite: bytes of the next
    // row are, bytes between rows may not be.
    if (!make_maps(Ring::kStageAlign) && !make_maps(Ring::kAlign) && (kGated || args.k % kStagedRun != 0)) {
      with_maps.period = 0;
    }
    const auto kernel = tiled_matmul<kType, X, kGated, kGroups>;
    constexpr int kBytes = Shared::kBytes;
    allow_shared_memory(reinterpret_cast<const void*>(kernel), kBytes, operation);
    with_maps.tile_blocks = std::max(args.tile_blocks, 1);
    int blocks = device.multiprocessors;
    std::optional<dim3> cluster;
    if (with_maps.tile_blocks > 1) {
      const int token_tiles = (args.num_rows + args.tile_tokens - 1) / args.tile_tokens;
      blocks = token_tiles * ((args.n + Shape::kTileRows - 1) / Shape::kTileRows) * with_maps.tile_blocks;
      cluster = dim3(static_cast<unsigned>(with_maps.tile_blocks));
    }
    pdl_launch(kernel, dim3(static_cast<unsigned>(blocks)), cluster, Shape::kThreads, kBytes, device, stream, operation,
               with_maps, maps);
  };
  using Most = std::conditional_t<tiles_in_f16(kType), __half, __nv_bfloat16>;
  if (gated) return launch.template operator()<__nv_bfloat16, true, 2>();
  if (tiles_in_f16(kType) && args.factors == nullptr) return launch.template operator()<__nv_bfloat16, false, 2>();
  if (args.few) return launch.template operator()<Most, false, 3>();
  launch.template operator()<Most, false, 2>();
}

// Instantiates a format.
#define THALWEG_TILED_MATMUL(type)                                                                                   \
  template void launch_tiled_matmul_of<DType::type>(const TiledMatmul&, bool, const DeviceProperties&, cudaStream_t, \
                                                    std::string_view)

}  // namespace thalweg::cu::sm90
