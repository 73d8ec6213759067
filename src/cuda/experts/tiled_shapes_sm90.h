#pragma once

// The tiled matmul's shared memory, and how a block walks through its tiles (tiled_sm90.h).

#include <cstddef>
#include <cstdint>

#include "cuda/experts/lane_weights_sm90.h"
#include "cuda/experts/tiled.h"

namespace thalweg::cu::sm90 {

constexpr int kWarpgroup = 128;
constexpr int kTokenThreads = 64;      // of warps 2 and 3
constexpr int kMostSharedTokens = 64;  // of a tile whose columns a cluster shares

// The shape of a block with kGroups consumer warpgroups: two for tiles of any number of tokens, three for experts with
// few, which leaves fewer registers for sums, but unpacks faster.
template <int kGroups>
struct TiledBlock {
  static constexpr int kThreads = (1 + kGroups) * kWarpgroup;
  static constexpr int kConsumerWarps = 4 * kGroups;
  static constexpr int kTileRows = 64 * kGroups;  // weight rows
  static constexpr int kMostTokens = kGroups == 2 ? kTileTokens : 64;
  static constexpr int kCopyRegisters = 72;
  static constexpr int kRegisters = kGroups == 2 ? 216 : 144;
  static_assert(kCopyRegisters + kGroups * kRegisters <= 512);
};

constexpr int kMostSharedBytes = 227 * 1024 - 13 * 1024;  // minus barriers and TileRows
constexpr int kAlignmentBytes = 1024;
constexpr int kMostWeightStages = 8;

template <DType kType, int kGroups>
struct TiledShared {
  // Bytes between rows of weights that begin at multiples of `align`. With odd multiples of 16, no two of eight rows
  // share banks; with multiples of 64, four do; those between are used where room is short.
  static constexpr int pitch(int align) {
    const int bytes = WeightRing<kType>::row_bytes(align);
    return bytes % 64 == 0 || (kGroups > 2 && bytes % 32 == 0) ? bytes + 16 : bytes;
  }
  static constexpr int kMostStageBytes = TiledBlock<kGroups>::kTileRows * pitch(WeightRing<kType>::kAlign);

  // A stage of tokens holds more panels of 64 columns, the fewer tokens there are. Large stages are faster, unless they
  // leave no room for three of weights.
  static constexpr int kRoom = kMostSharedBytes - kAlignmentBytes;
  static constexpr bool kSmall = kGroups > 2 && (kRoom - 3 * 32768) / kMostStageBytes < 3 &&
                                 (kRoom - 4 * 16384) / kMostStageBytes >= 3;
  static constexpr int kTokenStageBytes = kSmall ? 16384 : 32768;
  static constexpr int kTokenStages = kGroups > 2 && !kSmall ? 3 : 4;
  static constexpr int kTokenBytes = kTokenStages * kTokenStageBytes;
  __host__ __device__ static constexpr int panels(int tokens) {
    const int rows = tokens > 128 ? 256 : tokens > 64 ? 128 : tokens > 32 ? 64 : 32;
    return kTokenStageBytes / (rows * 128);
  }

  static constexpr int kWeightBytes = kRoom - kTokenBytes < kMostWeightStages * kMostStageBytes
                                          ? kRoom - kTokenBytes
                                          : kMostWeightStages * kMostStageBytes;
  static_assert(kWeightBytes >= 2 * kMostStageBytes);
  static constexpr int kBytes = kAlignmentBytes + kTokenBytes + kWeightBytes;
};

// The rows of a tile's tokens.
struct TileRows {
  std::int64_t y[kTileTokens];  // offsets of the results, in elements
  float factor[kTileTokens];    // of the results
  std::int32_t x[kTileTokens];  // rows of activations; row i is at index_of(i)

  // The rows of a copying thread, every eighth, are contiguous.
  __device__ static int index_of(int row) { return row % 8 * (kTileTokens / 8) + row / 8; }
};
constexpr int kRowStages = 3;  // tiles whose rows are known ahead

struct TiledBarriers {
  std::uint64_t rows_full[kRowStages];
  std::uint64_t rows_empty[kRowStages];
  std::uint64_t tokens_full[4];
  std::uint64_t tokens_empty[4];
  std::uint64_t weights_full[kMostWeightStages];
  std::uint64_t weights_empty[kMostWeightStages];
};

__device__ inline int staged(int columns) { return (columns + kStagedRun - 1) / kStagedRun * kStagedRun; }

// The stages of columns that a block multiplies: all, or its share of a cluster's tile.
template <DType kType, bool kGated>
struct ColumnShare {
  static constexpr int kStagePanels = WeightRing<kType>::kStageColumns / kTileColumns;
  int begin = 0;
  int end;
  int panels;  // of 64 columns

  __device__ explicit ColumnShare(const TiledMatmul& args)
      : end((args.k + WeightRing<kType>::kStageColumns - 1) / WeightRing<kType>::kStageColumns) {
    if constexpr (!kGated) {
      const int rank = static_cast<int>(blockIdx.x) % args.tile_blocks;
      const int stages = end;
      begin = stages * rank / args.tile_blocks;
      end = stages * (rank + 1) / args.tile_blocks;
    }
    panels = min(end * kStagePanels, staged(args.k) / kTileColumns) - begin * kStagePanels;
  }
};

// A tile of weight rows and tokens.
struct TileWork {
  TokenTile tokens;
  int first_n;
  int width;  // the most tokens that are multiplied at once
};

// Iterates over the tiles of a block. The next tile is loaded while the current one is multiplied.
template <bool kGated, int kGroups>
struct TileLoop {
  static constexpr int kTileRows = TiledBlock<kGroups>::kTileRows;
  static constexpr int kColumns = kGated ? kTileRows / 2 : kTileRows;
  std::int64_t at;
  std::int64_t stride;
  std::int64_t end;
  int n_tiles;
  TileWork work;
  TileWork next;

  __device__ explicit TileLoop(const TiledMatmul& args)
      : at(blockIdx.x), stride(gridDim.x), n_tiles(((kGated ? staged(args.n) : args.n) + kColumns - 1) / kColumns) {
    if constexpr (!kGated) {
      at = blockIdx.x / args.tile_blocks;
      stride = gridDim.x / args.tile_blocks;
    }
    end = args.tiles != nullptr ? *args.tile_count : (args.num_rows + args.tile_tokens - 1) / args.tile_tokens;
    end *= n_tiles;
    work = read(args, at);
    next = read(args, at + stride);
  }
  __device__ bool valid() const { return at < end; }
  __device__ void advance(const TiledMatmul& args) {
    at += stride;
    work = next;
    next = read(args, at + stride);
  }

 private:
  __device__ TileWork read(const TiledMatmul& args, std::int64_t from) const {
    if (from >= end) return {};
    const auto tile = static_cast<int>(from / n_tiles);
    TileWork result;
    result.first_n = static_cast<int>(from - static_cast<std::int64_t>(tile) * n_tiles) * kColumns;
    if (args.tiles != nullptr) {
      const int4 loaded = __ldg(reinterpret_cast<const int4*>(args.tiles + tile));
      result.tokens = {loaded.x, loaded.y, loaded.z, 0};
    } else {
      const int begin = tile * args.tile_tokens;
      result.tokens = {0, begin, min(args.tile_tokens, args.num_rows - begin), 0};
    }
    result.width = min(result.tokens.count, TiledBlock<kGroups>::kMostTokens);
    return result;
  }
};
// Calls body for each subtile of at most kMostTokens tokens.
template <int kGroups, class Body>
__device__ void for_each_subtile(const TileWork& work, Body body) {
  if constexpr (TiledBlock<kGroups>::kMostTokens == kTileTokens) {
    body(work);
  } else {
    TileWork subtile = work;
    for (int left = work.tokens.count; left > 0; left -= subtile.width) {
      subtile.tokens.count = min(left, subtile.width);
      body(subtile);
      subtile.tokens.begin += subtile.width;
    }
  }
}
template <bool kGated, int kGroups, class Body>
__device__ void for_each_tile(const TiledMatmul& args, Body body) {
  for (TileLoop<kGated, kGroups> tiles(args); tiles.valid(); tiles.advance(args)) {
    for_each_subtile<kGroups>(tiles.work, body);
  }
}

// A weight row of the tile: its matrix and its row there. If gated, eight rows of one matrix alternate with eight of
// the other, so that a thread gets the sums of both for the same output.
template <bool kGated>
struct WeightRow {
  bool is_up;
  int n;

  __device__ WeightRow(int row, int first_n)
      : is_up(kGated && row % 16 >= 8), n(kGated ? first_n + row / 16 * 8 + row % 8 : first_n + row) {}
};

}  // namespace thalweg::cu::sm90
