#include "metal/expert_launches.h"

#include <algorithm>

namespace thalweg::metal {
namespace {

// The dtypes' numbers in kernels/formats.h and kernels/common.h.
static_assert(static_cast<int>(DType::kF32) == 0 && static_cast<int>(DType::kF16) == 1 &&
              static_cast<int>(DType::kBF16) == 2 && static_cast<int>(DType::kQ4_0) == 4 &&
              static_cast<int>(DType::kQ8_0) == 8 && static_cast<int>(DType::kQ2_K) == 9 &&
              static_cast<int>(DType::kQ6_K) == 13 && static_cast<int>(DType::kMXFP4) == 16);

std::int32_t threads_per_expert(std::int64_t experts) {
  return static_cast<std::int32_t>(std::max<std::int64_t>(kRowsThreads / experts, 1));
}

ExpertMatmulParameters parameters_of(const ExpertMatmulArgs& args, const ConstTensor& up) {
  const bool per_slot = args.x.rank == 3;
  ExpertMatmulParameters p{};
  p.slots = static_cast<std::int32_t>(args.expert_ids.dim(1));
  p.n = static_cast<std::int32_t>(args.weight.dim(1));
  p.k = static_cast<std::int32_t>(args.weight.dim(2));
  p.experts = static_cast<std::int32_t>(args.weight.dim(0));
  p.weight_expert = bytes_of(args.weight.dtype, args.weight.stride(0));
  p.weight_row = bytes_of(args.weight.dtype, args.weight.stride(1));
  p.up_expert = bytes_of(up.dtype, up.stride(0));
  p.up_row = bytes_of(up.dtype, up.stride(1));
  p.x_token = args.x.stride(0);
  p.x_slot = per_slot ? args.x.stride(1) : 0;
  p.y_token = args.y.stride(0);
  p.y_slot = args.y.stride(1);
  p.ids_token = args.expert_ids.stride(0);
  return p;
}

void add_constants(Launch& launch, const ExpertMatmulArgs& args, const ConstTensor& up) {
  launch.constant("kType", args.x.dtype).constant("kOutType", args.y.dtype).constant("kFormat", args.weight.dtype);
  launch.constant("kPerSlot", args.x.rank == 3).constant("kGated", up.defined());
  launch.threads = 128;
}

// Pairs of octets with common scales that a lane takes at a time of k weights: as many as leave some for each lane.
std::int64_t lane_pairs(DType format, std::int64_t k) {
  std::int64_t pairs = kMostLanePairs;
  switch (format) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ6_K:
      pairs = 1;
      break;
    case DType::kQ4_K:
    case DType::kQ5_K:
      break;
    default:  // blocks or groups of 32
      pairs = 2;
  }
  while (pairs > 1 && k < 32 * 16 * pairs) pairs /= 2;
  return pairs;
}

// Of a tile's inputs and of each matrix' weights.
std::size_t tile_bytes(bool gated) {
  return (kRowsOfTile + (gated ? 2 : 1) * kColumnsOfTile) * kDepthOfTile * sizeof(float);
}

}  // namespace

ExpertLists::ExpertLists(std::int64_t pairs_, std::int64_t experts_, Arena& arena)
    : pairs(pairs_),
      experts(experts_),
      num_tiles(std::min(pairs, pairs / kRowsOfTile + experts)),
      offsets(arena.take<std::int32_t>(experts + 1)),
      rows(arena.take<std::int32_t>(pairs)),
      tiles(arena.take<RowTile>(num_tiles)),
      grid(arena.take<std::uint32_t>(3)) {}

bool lists_fit(std::int64_t experts) {
  return kCachedIds / 2 + 2 * experts + 1 + std::max<std::int64_t>(kRowsThreads, experts) <= 32768 / 4;
}

Launch rows_launch(const ConstTensor& ids, std::int64_t experts, ExpertRowsParameters& p) {
  p.pairs = static_cast<std::int32_t>(ids.size());
  p.slots = static_cast<std::int32_t>(std::max<std::int64_t>(ids.dim(1), 1));
  p.experts = static_cast<std::int32_t>(experts);
  p.threads_per_expert = threads_per_expert(experts);
  p.ids_token = ids.stride(0);
  Launch launch;
  launch.kernel = "expert_rows";
  launch.set(p).add(ids);
  launch.threads = kRowsThreads;
  const std::int64_t words = kCachedIds / 2 + experts + 1 + p.threads_per_expert * experts;
  launch.threadgroup_bytes = static_cast<std::size_t>((words + 3) / 4 * 4) * sizeof(std::int32_t);
  return launch;
}

Launch lists_launch(const ConstTensor& ids, std::int64_t n, const ExpertLists& lists, ExpertRowsParameters& p) {
  Launch launch = rows_launch(ids, lists.experts, p);
  p.column_blocks = static_cast<std::int32_t>(ceil_div(n, kColumnsOfTile));
  launch.add(buffer_of(lists.offsets, lists.experts + 1)).add(buffer_of(lists.rows, lists.pairs));
  launch.add(buffer_of(lists.tiles, lists.num_tiles)).add(buffer_of(lists.grid, 3));
  launch.constant("kListsTiles", 1);
  return launch;
}

Launch expert_tiles_launch(const ExpertMatmulArgs& args, const ConstTensor& up, const ExpertLists& lists,
                           ExpertMatmulParameters& p) {
  p = parameters_of(args, up);
  Launch launch;
  launch.kernel = "mul_mm_id";
  launch.set(p).add(args.weight).add(up).add(args.x).add(buffer_of(lists.rows, lists.pairs));
  launch.add(buffer_of(lists.tiles, lists.num_tiles)).add(args.y);
  add_constants(launch, args, up);
  launch.threadgroup_bytes = tile_bytes(up.defined());
  launch.indirect_grid = lists.grid;
  launch.after_previous = true;
  return launch;
}

Launch expert_vectors_launch(const ExpertMatmulArgs& args, const ConstTensor& up, ExpertMatmulParameters& p) {
  p = parameters_of(args, up);
  Launch launch;
  launch.kernel = "mul_mv_id";
  launch.set(p).add(args.weight).add(up).add(args.x).add(args.expert_ids).add(args.y);
  add_constants(launch, args, up);
  add_lane_pairs(launch, args.weight);
  launch.grid = {ceil_div(p.n, kColumnsOfVector), static_cast<std::uint32_t>(args.expert_ids.size()), 1};
  return launch;
}

void add_lane_pairs(Launch& launch, const ConstTensor& weight, std::int64_t rows) {
  launch.constant("kLanePairs", lane_pairs(weight.dtype, rows * weight.dim(weight.rank - 1)));
}

Launch linear_launch(std::string_view kernel, const LinearArgs& args, const ConstTensor& up, LinearParameters& p) {
  p = {};
  p.tokens = static_cast<std::int32_t>(args.x.dim(0));
  p.n = static_cast<std::int32_t>(args.weight.dim(0));
  p.k = static_cast<std::int32_t>(args.weight.dim(1));
  p.weight_row = bytes_of(args.weight.dtype, args.weight.stride(0));
  p.up_row = bytes_of(up.dtype, up.stride(0));
  p.x_token = args.x.stride(0);
  p.y_token = args.y.stride(0);
  Launch launch;
  launch.kernel = kernel;
  launch.set(p).add(args.weight).add(up).add(args.x).add(args.bias).add(args.y);
  launch.constant("kType", args.x.dtype).constant("kOutType", args.y.dtype).constant("kFormat", args.weight.dtype);
  launch.constant("kGated", up.defined()).constant("kHasBias", args.bias.defined());
  launch.threads = 128;
  if (kernel == "linear_tiles") {
    launch.threadgroup_bytes = tile_bytes(up.defined());
    launch.grid = {ceil_div(p.n, kColumnsOfTile), ceil_div(p.tokens, kRowsOfTile), 1};
  } else {
    add_lane_pairs(launch, args.weight);
    launch.grid = {ceil_div(p.n, kColumnsOfVector), ceil_div(p.tokens, kVectorTokens), 1};
  }
  return launch;
}

}  // namespace thalweg::metal
