#pragma once

// The expert matmuls by tiles: rows grouped by expert, for many rows per expert (tiled_matmul.h).

#include <string>
#include <string_view>

#include "core/arena.h"
#include "cuda/expert_lists.h"
#include "cuda/tiled_matmul.h"
#include "thalweg/moe.h"

namespace thalweg::cu {

// The experts' rows and how they are cut, in a workspace.
struct ExpertTiles {
  ExpertLists lists;
  TokenTile* tiles;
  std::int32_t* tile_count;
  int experts;

  ExpertTiles(std::int64_t experts_, std::int64_t pairs, Arena& arena)
      : tiles(arena.take<TokenTile>(most_tiles(experts_, pairs))),
        tile_count(arena.take<std::int32_t>(1)),
        experts(static_cast<int>(experts_)) {
    lists.offsets = arena.take<std::int32_t>(experts_ + 1);
    lists.rows = arena.take<std::int32_t>(pairs);
  }

  // Has the tiles cut by a launch that comes after the lists.
  void prepare(PrepareTiles& args) const {
    args.expert_offsets = lists.offsets;
    args.experts = experts;
    args.tiles = tiles;
    args.tile_count = tile_count;
  }
  void use(TiledMatmul& matmul) const {
    matmul.tiles = tiles;
    matmul.tile_count = tile_count;
    matmul.rows = lists.rows;
  }
};

std::string expert_tiles_supports(const ExpertMatmulArgs& args, const Stream& stream);
std::size_t expert_tiles_workspace(const ExpertMatmulArgs& args);
void run_expert_tiles(const ExpertMatmulArgs& args, Workspace workspace, const Stream& stream,
                      std::string_view operation);

// One matrix.
std::string linear_tiles_supports(const LinearArgs& args, const Stream& stream);
std::size_t linear_tiles_workspace(const LinearArgs& args, const Stream& stream);
void run_linear_tiles(const LinearArgs& args, Workspace workspace, const Stream& stream);

}  // namespace thalweg::cu
