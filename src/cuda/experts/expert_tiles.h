#pragma once

// The expert matmuls by tiles, for many rows per expert (tiled.h).

#include <string>
#include <string_view>

#include "core/arena.h"
#include "cuda/experts/expert_lists.h"
#include "cuda/experts/tiled.h"
#include "thalweg/moe.h"

namespace thalweg::cu {

// Row lists and tiles of the experts, in a workspace.
struct ExpertTiles {
  ExpertLists lists;

  ExpertTiles(std::int64_t experts, std::int64_t pairs, Arena& arena) {
    lists.tiles = arena.take<TokenTile>(most_tiles(experts, pairs));
    lists.tile_count = arena.take<std::int32_t>(1);
    lists.offsets = arena.take<std::int32_t>(experts + 1);
    lists.rows = arena.take<std::int32_t>(pairs);
  }

  void use(TiledMatmul& matmul) const {
    matmul.tiles = lists.tiles;
    matmul.tile_count = lists.tile_count;
    matmul.rows = lists.rows;
  }
};

std::string expert_tiles_supports(const ExpertMatmulArgs& args, const Stream& stream);
std::size_t expert_tiles_workspace(const ExpertMatmulArgs& args);
void run_expert_tiles(const ExpertMatmulArgs& args, Workspace workspace, const Stream& stream,
                      std::string_view operation);

// linear by tiles. `staged`: the workspace has the rows already, of a product with the same rows and a weight of a
// format that is staged alike.
std::string linear_tiles_supports(const LinearArgs& args, const Stream& stream);
std::size_t linear_tiles_workspace(const LinearArgs& args);
bool stage_alike(const LinearArgs& a, const LinearArgs& b);
void run_linear_tiles(const LinearArgs& args, Workspace workspace, const Stream& stream, bool staged = false);

}  // namespace thalweg::cu
