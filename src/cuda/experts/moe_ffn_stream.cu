// moe_ffn's `stream`.

#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/moe_ffn.h"
#include "cuda/experts/stream.h"

namespace thalweg::cu {
namespace {

struct StreamedPlan {
  MoeRouting routing;
  SharedTiles shared;
  std::uint16_t* staged_x;  // [T,D], of the shared expert
  float* gates;             // [T,S,I]
  float* ups;               // [T,S,I]
  Bf16* products;           // [T,S,D]
  StreamPlan gate_up;       // lists and activations of both
  StreamPlan down;

  StreamedPlan(const MoeFfnArgs& args, const DeviceProperties& device, Arena arena)
      : routing(args, device, arena),
        shared(args, arena),
        staged_x(
            arena.take<std::uint16_t>(has_shared(args) ? num_tokens(args) * staged_columns(hidden_size(args)) : 0)),
        gates(arena.take<float>(num_pairs(args) * inner_size(args))),
        ups(arena.take<float>(num_pairs(args) * inner_size(args))),
        products(arena.take<Bf16>(num_pairs(args) * hidden_size(args))),
        gate_up(args.x, args.gate, num_pairs(args), arena),
        down(inner_tensor(args, gates), args.down, num_pairs(args), arena),
        bytes(arena.used()) {}

  static Tensor inner_tensor(const MoeFfnArgs& args, float* data) {
    return Tensor(data, DType::kF32, {num_tokens(args), args.top_k, inner_size(args)}, args.x.device);
  }

  std::size_t bytes;
};

}  // namespace

std::string moe_stream_supports(const MoeFfnArgs& args, const Stream& stream) {
  std::string reason = routing_reason(args);
  for (const ConstTensor* weight : {&args.gate, &args.up, &args.down}) {
    if (reason.empty()) reason = stream_supports(*weight, num_pairs(args));
  }
  if (reason.empty() && args.gate.dtype != args.up.dtype) reason = "takes gate and up of one format";
  if (reason.empty()) reason = shared_tiles_reason(args, properties(stream.device.index));
  return reason;
}

std::size_t moe_stream_workspace(const MoeFfnArgs& args, const Stream& stream) {
  return StreamedPlan(args, properties(stream.device.index), Arena()).bytes;
}

void run_moe_stream(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DeviceProperties& device = properties(stream.device.index);
  const cudaStream_t queue = native(stream);
  StreamedPlan plan(args, device, Arena(workspace));
  plan.routing.run(args, device, queue);
  const ConstTensor ids = plan.routing.id_tensor(args);
  const auto product = [&](const ConstTensor& weight, const ConstTensor& x, void* y, DType dtype) {
    return expert_matmul(expert_product(args, weight, x, ids, y, dtype));
  };
  const Tensor gates = StreamedPlan::inner_tensor(args, plan.gates);
  const Tensor ups = StreamedPlan::inner_tensor(args, plan.ups);
  const ExpertMatmul gate = product(args.gate, args.x, plan.gates, DType::kF32);
  prepare_experts(plan.gate_up.experts, gate.ids, args.x, stream, args.kName);
  launch_stream(plan.gate_up, gate, args.gate, stream, args.kName);
  launch_stream(plan.gate_up, product(args.up, args.x, plan.ups, DType::kF32), args.up, stream, args.kName);
  const ExpertMatmul down = product(args.down, gates, plan.products, DType::kBF16);
  // Formats may cut the same lists into other items.
  const bool same_items = plan.down.kernel.item_rows == plan.gate_up.kernel.item_rows;
  if (same_items) plan.down.experts.lists = plan.gate_up.experts.lists;
  prepare_gated(plan.down.experts, same_items, down.ids, gates, ups, stream, args.kName);
  launch_stream(plan.down, down, args.down, stream, args.kName);
  if (has_shared(args)) {
    prepare_tiles({}, {}, args.x, plan.staged_x, stream, args.kName);
    plan.shared.run(args, plan.staged_x, device, queue);
  }
  run_combine(args, plan.products, plan.routing.weights, plan.shared.products, device, queue);
}

std::string moe_stream_remark(const MoeFfnArgs& args) {
  return routing_remark(args) + "; gate and up: " + stream_rounding(args.gate, num_pairs(args)) +
         "; down: " + stream_rounding(args.down, num_pairs(args));
}

}  // namespace thalweg::cu
