#pragma once

// The tiled matmul on Hopper. A persistent block takes tiles of 128 weight rows by up to 256 tokens, or of 192 rows by
// up to 64:
//
//   one warp          looks ahead: where the rows of the next tiles are, and where their results go
//   one copying warp  weights as they lie in the file, 256 of each row at a time, into a ring
//   two copying warps the tile's rows of staged activations, gathered, 64 to 512 columns at a time, into another ring
//   two or three warpgroups
//                     unpack the 64 weight rows each owns straight into the left operand of the tensor cores, in
//                     registers, while the products of the columns before are under way
//
// A weight row is unpacked by the four lanes that need it, 32 neighbouring weights each: the staged order of the
// activations (tiled_matmul.h) makes up for that. No weight is unpacked twice for the same tile, none is written to
// shared memory unpacked.

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "cuda/common/async_copy.h"
#include "cuda/common/elements.h"
#include "cuda/common/mbarrier.h"
#include "cuda/common/mma.h"
#include "cuda/common/pdl.h"
#include "cuda/common/wgmma.h"
#include "cuda/experts/run_weights_sm90.h"
#include "cuda/experts/tiled.h"
#include "cuda/experts/weight_map_sm90.h"

namespace thalweg::cu::sm90 {

constexpr int kWarpgroup = 128;
constexpr int kTokenThreads = 64;  // that copy activations

// A block by its warpgroups that multiply: two for tiles of any number of tokens, three where experts have few, which
// leaves less room for sums, but unpacks faster.
template <int kGroups>
struct TiledBlock {
  static constexpr int kThreads = (1 + kGroups) * kWarpgroup;
  static constexpr int kConsumerWarps = 4 * kGroups;
  static constexpr int kTileRows = 64 * kGroups;  // of weights
  static constexpr int kMostTokens = kGroups == 2 ? kTileTokens : 64;
  static constexpr int kCopyRegisters = 72;
  static constexpr int kRegisters = kGroups == 2 ? 216 : 144;
  static_assert(kCopyRegisters + kGroups * kRegisters <= 512);
};

constexpr int kMostSharedBytes = 227 * 1024 - 13 * 1024;  // less barriers and TileRows
constexpr int kAlignmentBytes = 1024;
constexpr int kMostWeightStages = 8;

template <DType kType, int kGroups>
struct TiledShared {
  // From row to row of weights that begin at multiples of `align`. Odd multiples of 16 have no two rows in the same
  // banks, multiples of 64 have four; what is between is taken where room is short.
  static constexpr int pitch(int align) {
    const int bytes = WeightRing<kType>::row_bytes(align);
    return bytes % 64 == 0 || (kGroups > 2 && bytes % 32 == 0) ? bytes + 16 : bytes;
  }
  static constexpr int kMostStageBytes = TiledBlock<kGroups>::kTileRows * pitch(WeightRing<kType>::kAlign);

  // A stage of tokens holds some panels of 64 columns, the more the fewer tokens there are. Large stages are better,
  // unless they leave no room for three of weights.
  static constexpr int kRoom = kMostSharedBytes - kAlignmentBytes;
  static constexpr bool kSmall = kGroups > 2 && (kRoom - 3 * 32768) / kMostStageBytes < 3 &&
                                 (kRoom - 4 * 16384) / kMostStageBytes >= 3;
  static constexpr int kTokenStageBytes = kSmall ? 16384 : 32768;
  static constexpr int kTokenStages = kGroups > 2 && !kSmall ? 3 : 4;
  static constexpr int kTokenBytes = kTokenStages * kTokenStageBytes;
  __host__ __device__ static constexpr int panels(int tokens) {
    const int places = tokens > 128 ? 256 : tokens > 64 ? 128 : tokens > 32 ? 64 : 32;
    return kTokenStageBytes / (places * 128);
  }

  static constexpr int kWeightBytes = kRoom - kTokenBytes < kMostWeightStages * kMostStageBytes
                                          ? kRoom - kTokenBytes
                                          : kMostWeightStages * kMostStageBytes;
  static_assert(kWeightBytes >= 2 * kMostStageBytes);
  static constexpr int kBytes = kAlignmentBytes + kTokenBytes + kWeightBytes;
};

// The rows of a tile's tokens.
struct TileRows {
  std::int64_t y[kTileTokens];  // where the results go, in elements
  float factor[kTileTokens];    // of the results
  std::int32_t x[kTileTokens];  // rows of activations: that of row i at place_of(i)

  // A copying thread's rows, every eighth, lie together.
  __device__ static int place_of(int row) { return row % 8 * (kTileTokens / 8) + row / 8; }
};
constexpr int kAhead = 3;  // tiles whose rows are known

struct TiledBarriers {
  std::uint64_t rows_full[kAhead];
  std::uint64_t rows_empty[kAhead];
  std::uint64_t tokens_full[4];
  std::uint64_t tokens_empty[4];
  std::uint64_t weights_full[kMostWeightStages];
  std::uint64_t weights_empty[kMostWeightStages];
};

// Arrives at a barrier of the block once all copies that this thread has begun are complete.
__device__ inline void arrive_after_copies(Mbarrier barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier.address) : "memory");
}

__device__ inline int staged(int columns) { return (columns + kStagedRun - 1) / kStagedRun * kStagedRun; }

// The tile of weight rows and tokens that a block works on.
struct TileWork {
  TokenTile tokens;
  int first_n;
  int width;  // tokens that are multiplied at once, at most
};

// Walks through a block's tiles. The next one is asked for while the one before is worked on.
template <bool kGated, int kGroups>
struct TileLoop {
  static constexpr int kTileRows = TiledBlock<kGroups>::kTileRows;
  static constexpr int kColumns = kGated ? kTileRows / 2 : kTileRows;
  std::int64_t at;
  std::int64_t end;
  int n_tiles;
  TileWork work;
  TileWork next;

  __device__ explicit TileLoop(const TiledMatmul& args)
      : at(blockIdx.x), n_tiles(((kGated ? staged(args.n) : args.n) + kColumns - 1) / kColumns) {
    end = args.tiles != nullptr ? *args.tile_count : (args.num_rows + args.tile_tokens - 1) / args.tile_tokens;
    end *= n_tiles;
    work = read(args, at);
    next = read(args, at + gridDim.x);
  }
  __device__ bool valid() const { return at < end; }
  __device__ void advance(const TiledMatmul& args) {
    at += gridDim.x;
    work = next;
    next = read(args, at + gridDim.x);
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
// A tile, in parts of as many tokens as there is room for.
template <int kGroups, class Body>
__device__ void for_each_part(const TileWork& work, Body body) {
  if constexpr (TiledBlock<kGroups>::kMostTokens == kTileTokens) {
    body(work);
  } else {
    TileWork part = work;
    for (int left = work.tokens.count; left > 0; left -= part.width) {
      part.tokens.count = min(left, part.width);
      body(part);
      part.tokens.begin += part.width;
    }
  }
}
template <bool kGated, int kGroups, class Body>
__device__ void for_each_tile(const TiledMatmul& args, Body body) {
  for (TileLoop<kGated, kGroups> tiles(args); tiles.valid(); tiles.advance(args)) {
    for_each_part<kGroups>(tiles.work, body);
  }
}

// The warp that looks ahead.
template <bool kGated, int kGroups>
__device__ void find_rows(const TiledMatmul& args, TileRows* rows, MbarrierArray full, MbarrierArray empty) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int columns = staged(args.n);
  RingStage place;
  for_each_tile<kGated, kGroups>(args, [&](const TileWork& work) {
    empty[place.index].wait(place.parity ^ 1);
    TileRows& to = rows[place.index];
    for (int i = lane; i < work.tokens.count; i += 32) {
      const int at = work.tokens.begin + i;
      const int pair = args.rows != nullptr ? __ldg(args.rows + at) : at;
      const int x_row = pair / args.pairs_per_x_row;
      to.x[TileRows::place_of(i)] = x_row;
      to.factor[i] = args.factors != nullptr ? __ldg(args.factors + x_row) : 1.0F;
      if constexpr (kGated) {
        to.y[i] = static_cast<std::int64_t>(pair) * columns;
      } else {
        const int token = pair / args.slots;
        to.y[i] = token * args.y_token_stride + (pair - token * args.slots) * args.y_slot_stride;
      }
    }
    full[place.index].arrive();
    place.advance(kAhead);
  });
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

// The weights as the copy engine sees them: words of 16 bits [E,N/P,.], P rows together being a multiple of 16 bytes
// (args.period). A box is the rows of a tile (eight, with gates) by args.pitch bytes, or every P-th of them.
struct WeightMaps {
  CUtensorMap weight;
  CUtensorMap up;
};

__device__ inline void copy_box(std::uint32_t to, const CUtensorMap& map, int word, int row, int expert,
                                Mbarrier barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(&map), "r"(word), "r"(row), "r"(expert), "r"(barrier.address)
      : "memory");
}

// By the copy engine, for one thread. What lies outside of the matrix becomes zeros. With P > 1 the rows of a tile lie
// in the order 0, P, 2 P, .. 1, P + 1, ..; never so with gates.
template <DType kType, bool kGated, int kGroups>
__device__ void copy_weight_boxes(const TiledMatmul& args, const WeightMaps& maps, std::uint32_t ring,
                                  MbarrierArray full, MbarrierArray empty) {
  using Ring = WeightRing<kType>;
  constexpr int kTileRows = TiledBlock<kGroups>::kTileRows;
  const int stage_bytes = kTileRows * args.pitch;
  const int units = (args.k + Ring::kUnit - 1) / Ring::kUnit;
  RingStage place;
  for_each_tile<kGated, kGroups>(args, [&](const TileWork& work) {
    for (int unit = 0; unit < units; ++unit) {
      empty[place.index].wait(place.parity ^ 1);
      const std::uint32_t to = ring + static_cast<std::uint32_t>(place.index * stage_bytes);
      const Mbarrier barrier = full[place.index];
      const auto word_of = [&](int byte) { return byte / 16 * 8; };  // the engine begins at multiples of 16 bytes too
      const int word = word_of(unit * Ring::kUnitBytes);
      barrier.arrive_expect_tx(static_cast<std::uint32_t>(stage_bytes));
      if constexpr (kGated) {
        for (int i = 0; i < kTileRows / 16; ++i) {
          const std::uint32_t eight = to + static_cast<std::uint32_t>(i * 16 * args.pitch);
          copy_box(eight, maps.weight, word, work.first_n + 8 * i, work.tokens.expert, barrier);
          copy_box(eight + static_cast<std::uint32_t>(8 * args.pitch), maps.up, word, work.first_n + 8 * i,
                   work.tokens.expert, barrier);
        }
      } else {
        for (int i = 0; i < args.period; ++i) {
          copy_box(to + static_cast<std::uint32_t>(i * (stage_bytes / args.period)), maps.weight,
                   word_of(i * static_cast<int>(args.weight.row_stride) + unit * Ring::kUnitBytes),
                   work.first_n / args.period, work.tokens.expert, barrier);
        }
      }
      place.advance(args.weight_stages);
    }
  });
}

// The same by a warp, for rows that do not begin at multiples of 16 bytes.
template <DType kType, bool kGated, int kGroups>
__device__ void copy_weights(const TiledMatmul& args, std::uint32_t ring, MbarrierArray full, MbarrierArray empty) {
  using Ring = WeightRing<kType>;
  constexpr int kTileRows = TiledBlock<kGroups>::kTileRows;
  constexpr int kPieces = Ring::row_bytes(Ring::kAlign) / 16;
  const int stage_bytes = kTileRows * args.pitch;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int units = (args.k + Ring::kUnit - 1) / Ring::kUnit;
  const std::int64_t row_bytes = static_cast<std::int64_t>(args.k / Ring::kBlock) * Ring::kBlockBytes;
  RingStage place;
  for_each_tile<kGated, kGroups>(args, [&](const TileWork& work) {
    for (int unit = 0; unit < units; ++unit) {
      empty[place.index].wait(place.parity ^ 1);
      const std::uint32_t to = ring + static_cast<std::uint32_t>(place.index * stage_bytes);
#pragma unroll 4
      for (int i = lane; i < kTileRows * kPieces; i += 32) {
        const int row = i / kPieces;
        const int piece = i % kPieces;
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
                         to + static_cast<std::uint32_t>(row * args.pitch + 16 * piece)),
                     "l"(valid > 0 ? piece_from : weight.data), "r"(valid)
                     : "memory");
      }
      arrive_after_copies(full[place.index]);
      place.advance(args.weight_stages);
    }
  });
}

template <DType kType, bool kGated, int kGroups>
__device__ void copy_tokens(const TiledMatmul& args, std::uint32_t ring, const TileRows* rows, MbarrierArray full,
                            MbarrierArray empty, MbarrierArray rows_full, MbarrierArray rows_empty) {
  using Shared = TiledShared<kType, kGroups>;
  const int thread = static_cast<int>(threadIdx.x) % kTokenThreads;
  const int piece = thread % 8;
  const int first_row = thread / 8;  // and every eighth from there
  const std::int64_t columns = staged(args.k);
  const auto panels = static_cast<int>(columns / kTileColumns);
  const std::uint32_t to = ring + swizzled(first_row, piece);
  RingStage place;
  RingStage rows_at;
  for_each_tile<kGated, kGroups>(args, [&](const TileWork& work) {
    constexpr int kEach = kTileTokens / 8;
    rows_full[rows_at.index].wait(rows_at.parity);
    const auto* own = reinterpret_cast<const int4*>(rows[rows_at.index].x + first_row * kEach);
    const std::uint16_t* from = args.x + piece * 8;
    const int fours = (work.tokens.count - first_row + 31) / 32;
    const auto copy_stages = [&]<int kPanels>() {
      for (int done = 0; done < panels; done += kPanels) {
        int4 four = own[0];
        empty[place.index].wait(place.parity ^ 1);
        std::uint32_t at = to + static_cast<std::uint32_t>(place.index * Shared::kTokenStageBytes);
        int left = work.tokens.count - first_row;
        for (int i = 0; i < fours; ++i) {
          const int4 next = own[min(i + 1, kEach / 4 - 1)];  // on its way while these are copied
          const auto copy_row = [&](int row, int number) {
            if (left <= 8 * row) return;
            const std::uint16_t* source = from + number * columns;
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel) {
              if (panel > 0 && done + panel >= panels) break;
              copy_16_bytes(
                  at + static_cast<std::uint32_t>(panel * (Shared::kTokenStageBytes / kPanels) + row * 8 * 128),
                  source + panel * kTileColumns);
            }
          };
          copy_row(0, four.x);
          copy_row(1, four.y);
          copy_row(2, four.z);
          copy_row(3, four.w);
          at += 32 * 128;
          left -= 32;
          four = next;
        }
        arrive_after_copies(full[place.index]);
        place.advance(Shared::kTokenStages);
        from += kPanels * kTileColumns;
      }
    };
    const auto copy_width = [&] {
      if constexpr (TiledBlock<kGroups>::kMostTokens > 64) {
        if (work.width > 128) return copy_stages.template operator()<Shared::panels(256)>();
        if (work.width > 64) return copy_stages.template operator()<Shared::panels(128)>();
      }
      if (work.width > 32) return copy_stages.template operator()<Shared::panels(64)>();
      copy_stages.template operator()<Shared::panels(32)>();
    };
    copy_width();
    rows_empty[rows_at.index].arrive();
    rows_at.advance(kAhead);
  });
}

// What a consumer knows of the rings.
struct ConsumerRings {
  const std::uint8_t* weights;
  std::uint32_t tokens;
  MbarrierArray weights_full, weights_empty, tokens_full, tokens_empty, rows_full, rows_empty;
  const TileRows* rows;
};

__device__ inline float silu(float x) { return x / (1.0F + __expf(-x)); }

// The sums of one thread to their place: rows lane / 4 and that + 8 of its warp's sixteen, columns 8 j + 2 (lane % 4)
// and the next.
template <int kWidth>
__device__ void store_products(const TiledMatmul& args, const TileWork& work, const TileRows& rows, float factor,
                               const float (&sum)[kWidth / 2], int first_row, int lane) {
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
      T* to = static_cast<T*>(args.y) + rows.y[column] + n;
      const float scale = factor * rows.factor[column];
      if (low) to[0] = from_f32<T>(fmaf(sum[i / 2 * 4 + i % 2], scale, low_bias));
      if (high) to[8] = from_f32<T>(fmaf(sum[i / 2 * 4 + 2 + i % 2], scale, high_bias));
    }
  });
}

// silu(gate) * up, staged; zeros in the columns that fill up the last run. Two lanes exchange their neighbours, so that
// each has a pair.
template <int kWidth>
__device__ void store_gated(const TiledMatmul& args, const TileWork& work, const std::int64_t* rows,
                            const float (&sum)[kWidth / 2], int first_row, int lane) {
  const int n = work.first_n + first_row / 2 + lane / 4;
  const bool odd = lane / 4 % 2 != 0;
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
    *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(args.y) + rows[column] + place) = packed;
  }
}

// Unpacks the weights of a tile's rows, half a run of columns at a time, while the products of the half before are
// under way.
template <DType kType, class X, bool kGated, int kGroups, int kWidth>
__device__ void multiply_tile(const TiledMatmul& args, const TileWork& work, const ConsumerRings& rings,
                              RingStage& weights_at, RingStage& tokens_at, RingStage& rows_at) {
  using Ring = WeightRing<kType>;
  using Shape = TiledBlock<kGroups>;
  using Shared = TiledShared<kType, kGroups>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = (static_cast<int>(threadIdx.x) - kWarpgroup) / 32 * 16;
  const int row = first_row + lane / 4;
  const auto place_of = [&](int of_row) {  // in a stage
    if (kGated || args.period <= 1) return of_row;
    return of_row % args.period * (Shape::kTileRows / args.period) + of_row / args.period;
  };
  const auto phase_of = [&](int of_row) {  // of the row's beginning
    if (Ring::kAlign == 16 || args.period == 1) return std::uint32_t{0};
    const WeightRow<kGated> at(of_row, work.first_n);
    const WeightView& weight = at.is_up ? args.up : args.weight;
    return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(
        weight.data + work.tokens.expert * weight.expert_stride + at.n * weight.row_stride));
  };
  const auto zero = static_cast<std::uint32_t>((row | args.k) >> 31);
  RunWeights<kType> low(place_of(row) * args.pitch, phase_of(row), lane % 4, zero);
  RunWeights<kType> high(place_of(row + 8) * args.pitch, phase_of(row + 8), lane % 4, zero);

  constexpr bool kHalves = std::is_same_v<X, __half>;
  // Weights that need no unpacking are loaded straight into the registers of the left operand, and the compiler would
  // load the next ones while products still read these: so they wait.
  constexpr bool kLoadedOperand = kType == DType::kBF16 || (kType == DType::kF16 && kHalves);
  constexpr int kPanels = Shared::panels(kWidth);
  constexpr int kRuns = Ring::kUnit / kStagedRun;
  constexpr int kUnitPanels = Ring::kUnit / kTileColumns;
  constexpr int kRunPanels = kStagedRun / kTileColumns;
  constexpr int kStagePanels = kPanels < kUnitPanels ? kPanels : kUnitPanels;  // that a unit has of a stage of tokens
  // Weights of the next run are read before these are multiplied: faster for MXFP4, slower for formats whose packed
  // weights take more registers.
  constexpr bool kEarly = kType == DType::kMXFP4 && kWidth <= 32;
  const int panels = staged(args.k) / kTileColumns;
  const int units = (args.k + Ring::kUnit - 1) / Ring::kUnit;
  const auto release = [&](int stage) {
    if (stage >= 0 && lane == 0) rings.tokens_empty[stage].arrive();
  };
  const auto read_run = [&](int unit, int run) {
    if (run == 0) rings.weights_full[weights_at.index].wait(weights_at.parity);
    const std::uint8_t* stage = rings.weights + weights_at.index * (Shape::kTileRows * args.pitch);
    low.read(stage, unit, run);
    high.read(stage, unit, run);
  };
  const auto finish_unit = [&] {
    __syncwarp();
    if (lane == 0) rings.weights_empty[weights_at.index].arrive();
    weights_at.advance(args.weight_stages);
  };

  float sum[kWidth / 2];
  std::uint32_t tokens = 0;  // the panel's
  int before = -1;           // the stage of tokens whose last products are under way
  if (kEarly) read_run(0, 0);
  for (int unit = 0; unit < units; ++unit) {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      if (run > 0 && unit * Ring::kUnit + run * kStagedRun >= args.k) {
        if (kEarly) finish_unit();
        break;
      }
      if (!kEarly) read_run(unit, run);
#pragma unroll
      for (int half = 0; half < kRunPanels; ++half) {
        std::uint32_t a[4][4];
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
        const bool last = half == kRunPanels - 1;
        if (last && kEarly && run + 1 < kRuns) {
          read_run(unit, run + 1);  // what lies beyond K is not used
        } else if (last && kEarly) {
          finish_unit();
          if (unit + 1 < units) read_run(unit + 1, 0);
        }
        const int unit_panel = kRunPanels * run + half;
        const int panel = unit * kUnitPanels + unit_panel;
        if (unit_panel % kStagePanels == 0 && panel % kPanels == 0) {
          rings.tokens_full[tokens_at.index].wait(tokens_at.parity);
          fence_proxy_async();
          tokens = rings.tokens + static_cast<std::uint32_t>(tokens_at.index * Shared::kTokenStageBytes);
        } else {
          tokens += static_cast<std::uint32_t>(Shared::kTokenStageBytes / kPanels);
        }
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          wgmma<X>(sum, a[step], describe_rows(tokens, step * 32), unit + unit_panel + step > 0 ? 1 : 0);
        }
        wgmma_commit();
        if (kLoadedOperand && last) {
          wgmma_wait<0>();
        } else {
          wgmma_wait<1>();
        }
        release(before);
        before = -1;
        if ((unit_panel + 1) % kStagePanels == 0 && (panel + 1) % kPanels == 0) {
          before = tokens_at.index;
          tokens_at.advance(Shared::kTokenStages);
        }
      }
    }
    if (!kEarly) finish_unit();
  }
  wgmma_wait<0>();
  pin(sum);
  release(before);
  if (panels % kPanels != 0) {
    release(tokens_at.index);
    tokens_at.advance(Shared::kTokenStages);
  }
  rings.rows_full[rows_at.index].wait(rows_at.parity);
  const TileRows& rows = rings.rows[rows_at.index];
  if constexpr (kGated) {
    store_gated<kWidth>(args, work, rows.y, sum, first_row, lane);
  } else {
    store_products<kWidth>(args, work, rows, kHalves ? 1.0F / kHalfFactor<kType> : 1.0F, sum, first_row, lane);
  }
  __syncwarp();
  if (lane == 0) rings.rows_empty[rows_at.index].arrive();
  rows_at.advance(kAhead);
}

template <DType kType, class X, bool kGated, int kGroups>
__global__ void __launch_bounds__(TiledBlock<kGroups>::kThreads, 1)
    tiled_matmul(const __grid_constant__ TiledMatmul args, const __grid_constant__ WeightMaps maps) {
  using Shape = TiledBlock<kGroups>;
  using Shared = TiledShared<kType, kGroups>;
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ TiledBarriers barriers;
  __shared__ __align__(16) TileRows rows[kAhead];
  const std::uint32_t offset = (1024 - shared_address(shared) % 1024) % 1024;
  const std::uint32_t tokens = shared_address(shared) + offset;
  const std::uint32_t weights = tokens + Shared::kTokenBytes;
  const MbarrierArray tokens_full{shared_address(barriers.tokens_full)};
  const MbarrierArray tokens_empty{shared_address(barriers.tokens_empty)};
  const MbarrierArray weights_full{shared_address(barriers.weights_full)};
  const MbarrierArray weights_empty{shared_address(barriers.weights_empty)};
  const MbarrierArray rows_full{shared_address(barriers.rows_full)};
  const MbarrierArray rows_empty{shared_address(barriers.rows_empty)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kAhead; ++i) {
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
  pdl_trigger_and_wait();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<Shape::kCopyRegisters>();
    if (threadIdx.x < 32) {
      find_rows<kGated, kGroups>(args, rows, rows_full, rows_empty);
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
                              rows};
    RingStage weights_at;
    RingStage tokens_at;
    RingStage rows_at;
    // Tiles come in the order of their classes.
    TileLoop<kGated, kGroups> tiles(args);
    const auto multiply_class = [&]<int kWidth, int kLess>() {
      while (tiles.valid() && tiles.work.tokens.count > kLess) {
        for_each_part<kGroups>(tiles.work, [&](const TileWork& part) {
          multiply_tile<kType, X, kGated, kGroups, kWidth>(args, part, rings, weights_at, tokens_at, rows_at);
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
    // Columns that fill up a run are zeros in the activations; weights there have to be finite, which those of the row
    // that follows are, and what may lie between rows is not.
    if (!make_maps(Ring::kUnitAlign) && !make_maps(Ring::kAlign) && (kGated || args.k % kStagedRun != 0)) {
      with_maps.period = 0;
    }
    const auto kernel = tiled_matmul<kType, X, kGated, kGroups>;
    constexpr int kBytes = Shared::kBytes;
    allow_shared_memory(reinterpret_cast<const void*>(kernel), kBytes, operation);
    pdl_launch(kernel, dim3(static_cast<unsigned>(device.multiprocessors)), Shape::kThreads, kBytes, device, stream,
               operation, with_maps, maps);
  };
  using Most = std::conditional_t<tiles_in_f16(kType), __half, __nv_bfloat16>;
  if (gated) return launch.template operator()<__nv_bfloat16, true, 2>();
  if (tiles_in_f16(kType) && args.factors == nullptr) return launch.template operator()<__nv_bfloat16, false, 2>();
  if (args.few) return launch.template operator()<Most, false, 3>();
  launch.template operator()<Most, false, 2>();
}

// Each format is compiled in a file with others that take as long.
#define THALWEG_TILED_MATMUL(type)                                                                                   \
  template void launch_tiled_matmul_of<DType::type>(const TiledMatmul&, bool, const DeviceProperties&, cudaStream_t, \
                                                    std::string_view)

}  // namespace thalweg::cu::sm90
