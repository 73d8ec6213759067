#include "core/arena.h"
#include "cuda/experts/expert_tiles.h"
#include "cuda/launch.h"
#include "cuda/row_hint.h"

namespace thalweg::cu {
namespace {

// Layout of the workspace.
struct TiledPlan {
  std::uint16_t* staged;  // [T,staged_columns(K)]
  float* factors;         // [T]; null: staged as bf16

  TiledPlan(const LinearArgs& args, Arena arena)
      : staged(arena.take<std::uint16_t>(args.x.dim(0) * staged_columns(args.x.dim(1)))),
        factors(tiles_in_f16(args.weight.dtype) ? arena.take<float>(args.x.dim(0)) : nullptr),
        bytes(arena.used()) {}

  std::size_t bytes;
};

}  // namespace

std::string linear_tiles_supports(const LinearArgs& args, const Stream& stream) {
  std::string reason = tiled_reason(args.weight, properties(stream.device.index));
  if (reason.empty() && args.x.dim(0) > kMostTiledRows) reason = "takes at most 2^30 tokens";
  return reason;
}

std::size_t linear_tiles_workspace(const LinearArgs& args) { return TiledPlan(args, Arena()).bytes; }

bool stage_alike(const LinearArgs& a, const LinearArgs& b) {
  return tiles_in_f16(a.weight.dtype) == tiles_in_f16(b.weight.dtype);
}

void run_linear_tiles(const LinearArgs& args, Workspace workspace, const Stream& stream, bool staged) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, LinearArgs::kName);
  const DeviceProperties& device = properties(stream.device.index);
  const TiledPlan plan(args, Arena(workspace));
  if (!staged) prepare_tiles({}, {}, args.x, plan.staged, stream, LinearArgs::kName, plan.factors);
  TiledMatmul matmul = tiled_product(args.weight, plan.staged, plan.factors);
  const std::int64_t rows = args.x.dim(0);
  matmul.num_rows = static_cast<int>(rows);
  TileDivision division = divide_tiles(args.weight, planned_rows(rows, stream), device);
  // What only divides the rows follows their true number.
  if (division.blocks == 1) division.tokens = choose_tile_tokens(rows, args.weight.dim(0), device.multiprocessors);
  matmul.tile_tokens = division.tokens;
  matmul.tile_blocks = division.blocks;
  matmul.few = division.few;
  matmul.y = args.y.data;
  matmul.y_dtype = args.y.dtype;
  matmul.y_token_stride = args.y.stride(0);
  matmul.bias = static_cast<const float*>(args.bias.data);
  sm90::launch_tiled_matmul(matmul, args.weight.dtype, false, device, native(stream), LinearArgs::kName);
}

}  // namespace thalweg::cu
