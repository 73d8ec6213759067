#pragma once

// The producer warps of the tiled matmul (tiled_sm90.h).

#include <cuda.h>

#include <cstdint>

#include "cuda/common/async_copy.h"
#include "cuda/common/mbarrier.h"
#include "cuda/common/pdl.h"
#include "cuda/experts/tiled_shapes_sm90.h"

namespace thalweg::cu::sm90 {

// Arrives at a barrier once all copies that this thread has issued are complete.
__device__ inline void arrive_after_copies(Mbarrier barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier.address) : "memory");
}

// Warp 0: finds the rows of the next tiles.
template <bool kGated, int kGroups>
__device__ void find_tile_rows(const TiledMatmul& args, TileRows* rows, MbarrierArray full, MbarrierArray empty) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int columns = staged(args.n);
  RingStage stage;
  for_each_tile<kGated, kGroups>(args, [&](const TileWork& work) {
    empty[stage.index].wait(stage.parity ^ 1);
    TileRows& to = rows[stage.index];
    pdl_wait();
    for (int i = lane; i < work.tokens.count; i += 32) {
      const int at = work.tokens.begin + i;
      const int pair = args.rows != nullptr ? __ldg(args.rows + at) : at;
      const int x_row = pair / args.pairs_per_x_row;
      to.x[TileRows::index_of(i)] = x_row;
      to.factor[i] = args.factors != nullptr ? __ldg(args.factors + x_row) : 1.0F;
      if constexpr (kGated) {
        to.y[i] = static_cast<std::int64_t>(pair) * columns;
      } else {
        const int token = pair / args.slots;
        to.y[i] = token * args.y_token_stride + (pair - token * args.slots) * args.y_slot_stride;
      }
    }
    full[stage.index].arrive();
    stage.advance(kRowStages);
  });
}

// The tensor maps of the weights: words of 16 bits [E,N/P,.], where P rows together are a multiple of 16 bytes
// (args.period). A box is args.pitch bytes of the rows of a tile (if gated, of eight rows), or of every P-th row.
struct WeightMaps {
  CUtensorMap weight;
  CUtensorMap up;
};

__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ inline void copy_box(std::uint32_t to, const CUtensorMap& map, int word, int row, int expert,
                                Mbarrier barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(&map), "r"(word), "r"(row), "r"(expert), "r"(barrier.address)
      : "memory");
}

// Warp 1, one thread: copies weights by tensor map; rows beyond the matrix become zeros. With P > 1, never if gated,
// the rows of a tile lie in the order 0, P, 2 P, .. 1, P + 1, ..
template <DType kType, bool kGated, int kGroups>
__device__ void copy_weight_boxes(const TiledMatmul& args, const WeightMaps& maps, std::uint32_t ring,
                                  MbarrierArray full, MbarrierArray empty) {
  using Ring = WeightRing<kType>;
  constexpr int kTileRows = TiledBlock<kGroups>::kTileRows;
  const int stage_bytes = kTileRows * args.pitch;
  const ColumnShare<kType, kGated> share(args);
  RingStage stage;
  for_each_tile<kGated, kGroups>(args, [&](const TileWork& work) {
    for (int k_stage = share.begin; k_stage < share.end; ++k_stage) {
      empty[stage.index].wait(stage.parity ^ 1);
      const std::uint32_t to = ring + static_cast<std::uint32_t>(stage.index * stage_bytes);
      const Mbarrier barrier = full[stage.index];
      const auto word_of = [&](int byte) { return byte / 16 * 8; };  // boxes begin at multiples of 16 bytes
      const int word = word_of(k_stage * Ring::kStageRowBytes);
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
                   word_of(i * static_cast<int>(args.weight.row_stride) + k_stage * Ring::kStageRowBytes),
                   work.first_n / args.period, work.tokens.expert, barrier);
        }
      }
      stage.advance(args.weight_stages);
    }
  });
}

// Warp 1, all lanes: copies weights whose rows no tensor map describes, by cp.async.
template <DType kType, bool kGated, int kGroups>
__device__ void copy_weights(const TiledMatmul& args, std::uint32_t ring, MbarrierArray full, MbarrierArray empty) {
  using Ring = WeightRing<kType>;
  constexpr int kTileRows = TiledBlock<kGroups>::kTileRows;
  constexpr int kVectors = Ring::row_bytes(Ring::kAlign) / 16;
  const int stage_bytes = kTileRows * args.pitch;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ColumnShare<kType, kGated> share(args);
  const std::int64_t row_bytes = static_cast<std::int64_t>(args.k / Ring::kBlock) * Ring::kBlockBytes;
  RingStage stage;
  for_each_tile<kGated, kGroups>(args, [&](const TileWork& work) {
    for (int k_stage = share.begin; k_stage < share.end; ++k_stage) {
      empty[stage.index].wait(stage.parity ^ 1);
      const std::uint32_t to = ring + static_cast<std::uint32_t>(stage.index * stage_bytes);
#pragma unroll 4
      for (int i = lane; i < kTileRows * kVectors; i += 32) {
        const int row = i / kVectors;
        const int vector = i % kVectors;
        const WeightRow<kGated> at(row, work.first_n);
        if (at.n >= args.n) continue;
        const WeightView& weight = at.is_up ? args.up : args.weight;
        const std::uint8_t* begin = weight.data + work.tokens.expert * weight.expert_stride + at.n * weight.row_stride;
        const std::uint8_t* from = begin + static_cast<std::int64_t>(k_stage) * Ring::kStageRowBytes;
        const auto phase = Ring::kAlign < 16 ? static_cast<int>(reinterpret_cast<std::uintptr_t>(from) & 15) : 0;
        const std::uint8_t* vector_from = from - phase + 16 * vector;
        const std::int64_t left = begin + row_bytes - vector_from;
        const int valid = left >= 16 ? 16 : left > 0 ? static_cast<int>(left) : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         to + static_cast<std::uint32_t>(row * args.pitch + 16 * vector)),
                     "l"(valid > 0 ? vector_from : weight.data), "r"(valid)
                     : "memory");
      }
      arrive_after_copies(full[stage.index]);
      stage.advance(args.weight_stages);
    }
  });
}

// Warps 2 and 3: gather the staged activations of a tile, by cp.async.
template <DType kType, bool kGated, int kGroups>
__device__ void copy_tokens(const TiledMatmul& args, std::uint32_t ring, const TileRows* rows, MbarrierArray full,
                            MbarrierArray empty, MbarrierArray rows_full, MbarrierArray rows_empty) {
  using Shared = TiledShared<kType, kGroups>;
  const int thread = static_cast<int>(threadIdx.x) % kTokenThreads;
  const int vector = thread % 8;
  const int first_row = thread / 8;  // then every eighth
  const std::int64_t columns = staged(args.k);
  const ColumnShare<kType, kGated> share(args);
  const std::uint32_t to = ring + swizzled(first_row, vector);
  RingStage stage;
  RingStage rows_at;
  for_each_tile<kGated, kGroups>(args, [&](const TileWork& work) {
    constexpr int kEach = kTileTokens / 8;
    // Known without the list, rows in order are copied before their results' factors are there.
    const bool in_order = args.rows == nullptr && args.pairs_per_x_row == 1;
    if (!in_order) rows_full[rows_at.index].wait(rows_at.parity);
    const auto* own = reinterpret_cast<const int4*>(rows[rows_at.index].x + first_row * kEach);
    const auto rows_of = [&](int i) {
      if (!in_order) return own[min(i, kEach / 4 - 1)];
      const int first = work.tokens.begin + first_row + 32 * i;
      return int4{first, first + 8, first + 16, first + 24};
    };
    const std::uint16_t* from = args.x + share.begin * share.kStagePanels * kTileColumns + vector * 8;
    const int fours = (work.tokens.count - first_row + 31) / 32;
    pdl_wait();
    const auto copy_stages = [&]<int kPanels>() {
      for (int done = 0; done < share.panels; done += kPanels) {
        int4 four = rows_of(0);
        empty[stage.index].wait(stage.parity ^ 1);
        std::uint32_t at = to + static_cast<std::uint32_t>(stage.index * Shared::kTokenStageBytes);
        int left = work.tokens.count - first_row;
        for (int i = 0; i < fours; ++i) {
          const int4 next = rows_of(i + 1);  // loads while these are copied
          const auto copy_row = [&](int row, int number) {
            if (left <= 8 * row) return;
            const std::uint16_t* source = from + number * columns;
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel) {
              if (panel > 0 && done + panel >= share.panels) break;
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
        arrive_after_copies(full[stage.index]);
        stage.advance(Shared::kTokenStages);
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
    if (in_order) rows_full[rows_at.index].wait(rows_at.parity);
    rows_empty[rows_at.index].arrive();
    rows_at.advance(kRowStages);
  });
}

}  // namespace thalweg::cu::sm90
