// The routing of moe_ffn's `wgmma`, `stream` and `steps`: logits by wgmma on Hopper for many tokens, else by mma.

#include "cuda/common/tensor_view.h"
#include "cuda/experts/moe_ffn.h"
#include "cuda/experts/routing.h"
#include "cuda/row_hint.h"

namespace thalweg::cu {
namespace {

bool routes_by_wgmma(const MoeFfnArgs& args, std::int64_t tokens, const DeviceProperties& device) {
  return sm90::router_takes(tokens, num_experts(args), hidden_size(args), device);
}

int splits_of(const MoeFfnArgs& args, std::int64_t tokens, const DeviceProperties& device) {
  const bool wgmma = routes_by_wgmma(args, tokens, device);
  return (wgmma ? sm90::router_splits : router_splits)(tokens, num_experts(args), hidden_size(args),
                                                       device.multiprocessors);
}

}  // namespace

std::string routing_reason(const MoeFfnArgs& args) {
  if (!is_float(args.router.dtype)) return "takes a router of F32, F16 or BF16";
  if (num_experts(args) > kMostRoutedExperts) return "takes at most " + std::to_string(kMostRoutedExperts) + " experts";
  return {};
}

std::string routing_remark(const MoeFfnArgs& args) {
  return routes_by_wgmma(args, num_tokens(args), properties(args.x.device.index)) ? "router: wgmma" : "router: mma";
}

MoeRouting::MoeRouting(const MoeFfnArgs& args, const Stream& stream, Arena& arena)
    : wgmma(routes_by_wgmma(args, planned_rows(num_tokens(args), stream), properties(stream.device.index))),
      splits(splits_of(args, planned_rows(num_tokens(args), stream), properties(stream.device.index))),
      logits(arena.take<float>(splits * num_tokens(args) * num_experts(args))),
      staged(arena.take<std::byte>(wgmma ? sm90::staged_router_bytes(num_experts(args), hidden_size(args)) : 0)),
      ids(arena.take<std::int32_t>(num_pairs(args))),
      weights(arena.take<float>(num_pairs(args))) {}

ConstTensor MoeRouting::id_tensor(const MoeFfnArgs& args) const {
  return ConstTensor(ids, DType::kI32, {num_tokens(args), args.top_k}, args.x.device);
}

void MoeRouting::run(const MoeFfnArgs& args, const DeviceProperties& device, cudaStream_t stream) const {
  if (wgmma) {
    sm90::launch_router_logits(args.x, args.router, staged, logits, splits, device, stream, args.kName);
  } else {
    launch_router_logits(args.x, args.router, logits, splits, device, stream, args.kName);
  }
  RouterLogits sums;
  sums.logits = elements(Tensor(logits, DType::kF32, {num_tokens(args), num_experts(args)}, args.x.device));
  sums.splits = splits;
  sums.split_stride = num_tokens(args) * num_experts(args);
  sums.tokens = num_tokens(args);
  sums.experts = static_cast<int>(num_experts(args));
  const Routing routing{ids, args.top_k, weights, args.top_k, args.top_k, args.renormalize, experts_here(args)};
  if (routes_by_softmax(args)) {
    launch_route(sums, routing, device, stream, args.kName);
  } else {
    launch_scored_route(sums, routing, {args.score, static_cast<const float*>(args.router_bias.data)}, device, stream,
                        args.kName);
  }
}

}  // namespace thalweg::cu
