#pragma once

// Launches that the expert matmuls and the expert block share.

#include "core/arena.h"
#include "metal/layers.h"
#include "thalweg/moe.h"

namespace thalweg::metal {

// Each expert's rows and mul_mm_id's tiles, in a workspace.
struct ExpertLists {
  std::int64_t pairs;
  std::int64_t experts;
  std::int64_t num_tiles;  // at most
  std::int32_t* offsets;   // [experts + 1]
  std::int32_t* rows;      // [pairs]
  RowTile* tiles;          // [num_tiles]
  std::uint32_t* grid;     // [3], of the launch that takes the tiles

  ExpertLists(std::int64_t pairs_, std::int64_t experts_, Arena& arena);
};

// Whether the lists of all experts fit in threadgroup memory.
bool lists_fit(std::int64_t experts);
inline constexpr std::string_view kTooManyExperts = "needs lists of all experts in 32 KB of threadgroup memory";

// Without the outputs: offsets, rows, tiles and grid.
Launch rows_launch(const ConstTensor& ids, std::int64_t experts, ExpertRowsParameters& p);
// Fills the lists for a product of n outputs. Parameters must live until their launch has been encoded.
Launch lists_launch(const ConstTensor& ids, std::int64_t n, const ExpertLists& lists, ExpertRowsParameters& p);
// args.y = weight[expert] x; with a second matrix `up`, silu(weight[expert] x) * (up[expert] x).
Launch expert_tiles_launch(const ExpertMatmulArgs& args, const ConstTensor& up, const ExpertLists& lists,
                           ExpertMatmulParameters& p);
Launch expert_vectors_launch(const ExpertMatmulArgs& args, const ConstTensor& up, ExpertMatmulParameters& p);

// The constant kLanePairs of a kernel that multiplies few rows by `weight` [..,N,K]; its lanes share `rows` rows of K.
void add_lane_pairs(Launch& launch, const ConstTensor& weight, std::int64_t rows = 1);

// y = weight x (+ bias); with `up`, silu(weight x) * (up x). kernel: linear_rows or linear_tiles.
Launch linear_launch(std::string_view kernel, const LinearArgs& args, const ConstTensor& up, LinearParameters& p);

}  // namespace thalweg::metal
