// moe_ffn's `wgmma`, and the shared expert by tiles, which `stream` has too.

#include "cuda/experts/expert_tiles.h"
#include "cuda/experts/moe_ffn.h"

namespace thalweg::cu {
namespace {

struct TiledPlan {
  MoeRouting routing;
  ExpertTiles tiles;
  SharedTiles shared;
  std::uint16_t* x;          // staged [T,D]
  std::uint16_t* activated;  // staged [T*S,I]
  Bf16* products;            // [T*S,D]

  TiledPlan(const MoeFfnArgs& args, const Stream& stream, Arena arena)
      : routing(args, stream, arena),
        tiles(num_experts_here(args), num_pairs(args), arena),
        shared(args, arena),
        x(arena.take<std::uint16_t>(num_tokens(args) * staged_columns(hidden_size(args)))),
        activated(arena.take<std::uint16_t>(num_pairs(args) * staged_columns(inner_size(args)))),
        products(arena.take<Bf16>(num_pairs(args) * hidden_size(args))),
        bytes(arena.used()) {}

  std::size_t bytes;
};

}  // namespace

void run_gated_tiles(const ConstTensor& gate, const ConstTensor& up, const ConstTensor& down, TiledMatmul first,
                     TiledMatmul second, std::uint16_t* activated, Bf16* products, const DeviceProperties& device,
                     cudaStream_t stream) {
  first.up = weight_view(up);
  first.y = activated;
  sm90::launch_tiled_matmul(first, gate.dtype, true, device, stream, MoeFfnArgs::kName);
  second.y = products;
  second.y_dtype = DType::kBF16;
  second.y_token_stride = second.n;
  sm90::launch_tiled_matmul(second, down.dtype, false, device, stream, MoeFfnArgs::kName);
}

SharedTiles::SharedTiles(const MoeFfnArgs& args, Arena& arena)
    : activated(
          arena.take<std::uint16_t>(has_shared(args) ? num_tokens(args) * staged_columns(shared_inner_size(args)) : 0)),
      products(arena.take<Bf16>(has_shared(args) ? num_tokens(args) * hidden_size(args) : 0)) {}

void SharedTiles::run(const MoeFfnArgs& args, const std::uint16_t* x, const DeviceProperties& device,
                      cudaStream_t stream) const {
  TiledMatmul first = tiled_product(args.shared_gate, x);
  TiledMatmul second = tiled_product(args.shared_down, activated);
  first.num_rows = second.num_rows = static_cast<int>(num_tokens(args));
  first.tile_tokens = choose_tile_tokens(num_tokens(args), 2 * shared_inner_size(args), device.multiprocessors);
  second.tile_tokens = choose_tile_tokens(num_tokens(args), hidden_size(args), device.multiprocessors);
  run_gated_tiles(args.shared_gate, args.shared_up, args.shared_down, first, second, activated, products, device,
                  stream);
}

std::string shared_tiles_reason(const MoeFfnArgs& args, const DeviceProperties& device) {
  if (!has_shared(args)) return {};
  if (args.shared_gate.dtype != args.shared_up.dtype) return "takes shared_gate and shared_up of one format";
  std::string reason;
  for (const ConstTensor* weight : {&args.shared_gate, &args.shared_up, &args.shared_down}) {
    if (reason.empty()) reason = tiled_reason(*weight, device);
  }
  return reason;
}

std::string moe_tiles_supports(const MoeFfnArgs& args, const Stream& stream) {
  const DeviceProperties& device = properties(stream.device.index);
  std::string reason = routing_reason(args);
  for (const ConstTensor* weight : {&args.gate, &args.up, &args.down}) {
    if (reason.empty()) reason = tiled_reason(*weight, device);
  }
  if (reason.empty()) reason = shared_tiles_reason(args, device);
  if (reason.empty() && num_pairs(args) > kMostTiledRows) reason = "takes at most 2^30 pairs of token and slot";
  return reason;
}

std::size_t moe_tiles_workspace(const MoeFfnArgs& args, const Stream& stream) {
  return TiledPlan(args, stream, Arena()).bytes;
}

void run_moe_tiles(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DeviceProperties& device = properties(stream.device.index);
  const cudaStream_t queue = native(stream);
  const TiledPlan plan(args, stream, Arena(workspace));
  plan.routing.run(args, device, queue);
  prepare_tiles(plan.tiles.lists, expert_ids(plan.routing.id_tensor(args), num_experts_here(args), {}), args.x, plan.x,
                stream, args.kName);
  TiledMatmul first = tiled_product(args.gate, plan.x);
  plan.tiles.use(first);
  first.pairs_per_x_row = args.top_k;
  TiledMatmul second = tiled_product(args.down, plan.activated);
  plan.tiles.use(second);
  run_gated_tiles(args.gate, args.up, args.down, first, second, plan.activated, plan.products, device, queue);
  if (has_shared(args)) plan.shared.run(args, plan.x, device, queue);
  run_combine(args, plan.products, plan.routing.weights, plan.routing.ids, plan.shared.products, device, queue);
}

}  // namespace thalweg::cu
