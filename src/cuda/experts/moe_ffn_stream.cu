// moe_ffn's `stream`.

#include <optional>
#include <utility>

#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/moe_ffn.h"
#include "cuda/experts/stream.h"
#include "cuda/tuning.h"

namespace thalweg::cu {
namespace {

// The shared expert by `split`, for few tokens: three launches and SwiGLU in the conversion to bf16.
struct SharedSplit {
  float* gates;          // [T,J]
  float* ups;            // [T,J]
  ExpertPlan activated;  // bf16 [T,J], padded

  SharedSplit(const MoeFfnArgs& args, Arena& arena)
      : gates(arena.take<float>(num_tokens(args) * shared_inner_size(args))),
        ups(arena.take<float>(num_tokens(args) * shared_inner_size(args))),
        activated(inner(args, gates), num_tokens(args), 1, kItemRows, kPaddedColumns, ActivationOrder::kRows, arena) {}

  void run(const MoeFfnArgs& args, Bf16* products, const Stream& stream) const {
    const std::int64_t columns = shared_inner_size(args);
    product(args, args.x, args.shared_gate, Tensor(gates, DType::kF32, {num_tokens(args), columns}, args.x.device),
            stream);
    product(args, args.x, args.shared_up, Tensor(ups, DType::kF32, {num_tokens(args), columns}, args.x.device), stream);
    prepare_gated(activated, true, one_expert(num_tokens(args)), inner(args, gates), inner(args, ups), stream,
                  args.kName);
    ConstTensor x(activated.activations, DType::kBF16, {num_tokens(args), activated.padded_k}, args.x.device);
    x.alignment = kWorkspaceAlignment;
    product(args, column_range(x, 0, columns), args.shared_down,
            Tensor(products, DType::kBF16, {num_tokens(args), hidden_size(args)}, args.x.device), stream);
  }

 private:
  static constexpr int kItemRows = 8;
  static constexpr int kPaddedColumns = 128;
  static constexpr int kWorkspaceAlignment = 16;

  static Tensor inner(const MoeFfnArgs& args, float* data) {
    return Tensor(data, DType::kF32, {num_tokens(args), 1, shared_inner_size(args)}, args.x.device);
  }
  static void product(const MoeFfnArgs& args, const ConstTensor& x, const ConstTensor& weight, const Tensor& y,
                      const Stream& stream) {
    LinearArgs linear;
    linear.x = x;
    linear.weight = weight;
    linear.y = y;
    run_split(expert_matmul(linear), x, weight, stream, args.kName);
  }
};

bool splits_shared(const MoeFfnArgs& args) {
  if (!has_shared(args) || num_tokens(args) > tuning::experts::moe_ffn::kSplitSharedTokens) return false;
  for (const ConstTensor* weight : {&args.shared_gate, &args.shared_up, &args.shared_down}) {
    if (!split_supports(*weight, num_tokens(args)).empty()) return false;
  }
  return true;
}

struct StreamedPlan {
  MoeRouting routing;
  SharedTiles shared;
  std::optional<SharedSplit> split;
  std::uint16_t* staged_x;  // [T,D], of the shared expert
  float* gates;             // [T,S,I]
  float* ups;               // [T,S,I]
  Bf16* products;           // [T,S,D]
  StreamPlan gate_up;       // lists and activations of both
  StreamPlan down;

  StreamedPlan(const MoeFfnArgs& args, const Stream& stream, Arena arena)
      : routing(args, stream, arena),
        shared(args, arena),
        split(splits_shared(args) ? std::optional<SharedSplit>(std::in_place, args, arena) : std::nullopt),
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

// Whether one kernel reads both.
bool same_layout(const ConstTensor& a, const ConstTensor& b) {
  return a.shape == b.shape && a.strides == b.strides && a.alignment == b.alignment;
}

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
  return StreamedPlan(args, stream, Arena()).bytes;
}

void run_moe_stream(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DeviceProperties& device = properties(stream.device.index);
  const cudaStream_t queue = native(stream);
  StreamedPlan plan(args, stream, Arena(workspace));
  plan.routing.run(args, device, queue);
  const ConstTensor ids = plan.routing.id_tensor(args);
  const auto product = [&](const ConstTensor& weight, const ConstTensor& x, void* y, DType dtype) {
    return expert_matmul(expert_product(args, weight, x, ids, y, dtype));
  };
  const Tensor gates = StreamedPlan::inner_tensor(args, plan.gates);
  const Tensor ups = StreamedPlan::inner_tensor(args, plan.ups);
  const ExpertMatmul gate = product(args.gate, args.x, plan.gates, DType::kF32);
  prepare_experts(plan.gate_up.experts, gate.ids, args.x, stream, args.kName);
  if (same_layout(args.gate, args.up)) {
    const SecondProduct up{static_cast<const std::uint8_t*>(args.up.data), plan.ups};
    launch_stream(plan.gate_up, gate, args.gate, stream, args.kName, up);
  } else {
    launch_stream(plan.gate_up, gate, args.gate, stream, args.kName);
    launch_stream(plan.gate_up, product(args.up, args.x, plan.ups, DType::kF32), args.up, stream, args.kName);
  }
  const ExpertMatmul down = product(args.down, gates, plan.products, DType::kBF16);
  // Formats may cut the same lists into other items.
  const bool same_items = plan.down.kernel.item_rows == plan.gate_up.kernel.item_rows;
  if (same_items) plan.down.experts.lists = plan.gate_up.experts.lists;
  prepare_gated(plan.down.experts, same_items, down.ids, gates, ups, stream, args.kName);
  launch_stream(plan.down, down, args.down, stream, args.kName);
  if (plan.split) {
    plan.split->run(args, plan.shared.products, stream);
  } else if (has_shared(args)) {
    prepare_tiles({}, {}, args.x, plan.staged_x, stream, args.kName);
    plan.shared.run(args, plan.staged_x, device, queue);
  }
  run_combine(args, plan.products, plan.routing.weights, plan.routing.ids, plan.shared.products, device, queue);
}

std::string moe_stream_remark(const MoeFfnArgs& args) {
  return routing_remark(args) + "; gate and up: " + stream_rounding(args.gate, num_pairs(args)) +
         "; down: " + stream_rounding(args.down, num_pairs(args)) + (splits_shared(args) ? "; shared: split" : "");
}

}  // namespace thalweg::cu
