#include "cuda/experts/expert_tiles.h"

#include "cuda/launch.h"
#include "cuda/tuning.h"

namespace thalweg::cu {
namespace {

std::int64_t activation_rows(const ConstTensor& x) { return x.rank == 3 ? x.dim(0) * x.dim(1) : x.dim(0); }

// Layout of the workspace.
struct Plan {
  ExpertTiles tiles;
  std::uint16_t* staged;
  float* factors;  // null: staged as bf16

  Plan(const ExpertMatmulArgs& args, Arena arena)
      : tiles(args.weight.dim(0), args.expert_ids.size(), arena),
        staged(arena.take<std::uint16_t>(activation_rows(args.x) * staged_columns(args.weight.dim(2)))),
        factors(tiles_in_f16(args.weight.dtype) ? arena.take<float>(activation_rows(args.x)) : nullptr),
        bytes(arena.used()) {}

  std::size_t bytes;
};

}  // namespace

std::string expert_tiles_supports(const ExpertMatmulArgs& args, const Stream& stream) {
  std::string reason = tiled_reason(args.weight, properties(stream.device.index));
  if (reason.empty() && args.expert_ids.size() > kMostTiledRows) reason = "takes at most 2^30 ids";
  if (reason.empty() && args.weight.dim(0) > kMostListedExperts) {
    reason = "takes at most " + std::to_string(kMostListedExperts) + " experts";
  }
  return reason;
}

std::size_t expert_tiles_workspace(const ExpertMatmulArgs& args) { return Plan(args, Arena()).bytes; }

void run_expert_tiles(const ExpertMatmulArgs& args, Workspace workspace, const Stream& stream,
                      std::string_view operation) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, operation);
  const DeviceProperties& device = properties(stream.device.index);
  const Plan plan(args, Arena(workspace));
  prepare_tiles(plan.tiles.lists, expert_ids(args.expert_ids, args.weight.dim(0), args.fault), args.x, plan.staged,
                stream, operation, plan.factors);
  TiledMatmul matmul = tiled_product(args.weight, plan.staged, plan.factors);
  plan.tiles.use(matmul);
  matmul.few = args.expert_ids.size() <= tuning::experts::kNarrowTilePairsPerExpert * args.weight.dim(0);
  matmul.pairs_per_x_row = args.x.rank == 3 ? 1 : static_cast<int>(args.expert_ids.dim(1));
  matmul.y = args.y.data;
  matmul.y_dtype = args.y.dtype;
  matmul.slots = static_cast<int>(args.expert_ids.dim(1));
  matmul.y_token_stride = args.y.stride(0);
  matmul.y_slot_stride = args.y.stride(1);
  sm90::launch_tiled_matmul(matmul, args.weight.dtype, false, device, native(stream), operation);
}

}  // namespace thalweg::cu
