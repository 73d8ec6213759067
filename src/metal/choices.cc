// Launches of the operations that choose: experts, and the next step's input.

#include "metal/kernels.h"
#include "metal/layers.h"
#include "metal/routing.h"

namespace thalweg::metal {

Launch route_launch(const RouteTopKArgs& args, RouteParameters& p) {
  p.experts = static_cast<std::int32_t>(args.router_logits.dim(1));
  p.slots = static_cast<std::int32_t>(args.expert_ids.dim(1));
  p.renormalize = args.renormalize ? 1 : 0;
  p.sigmoid = args.score == RouterScore::kSigmoid ? 1 : 0;
  p.biased = args.bias.defined() ? 1 : 0;
  p.logits_token = args.router_logits.stride(0);
  p.ids_token = args.expert_ids.stride(0);
  p.weights_token = args.expert_weights.stride(0);
  Launch launch;
  launch.kernel = args.kName;
  launch.set(p).add(args.router_logits).add(args.bias).add(args.expert_ids).add(args.expert_weights);
  launch.constant("kType", args.router_logits.dtype);
  launch.threadgroup_bytes = static_cast<std::size_t>((p.experts + 3) / 4 * 4) * sizeof(float);
  launch.grid = {static_cast<std::uint32_t>(args.router_logits.dim(0)), 1, 1};
  return launch;
}

namespace {

std::string supports_route(const RouteTopKArgs& args, const Stream&) {
  return args.router_logits.dim(1) <= kMaxRoutedExperts ? "" : std::string(kTooManyLogits);
}

void run_route(const RouteTopKArgs& args, Workspace, const Stream& stream) {
  RouteParameters p{};
  make_encoder(args.kName, stream)->launch(route_launch(args, p));
}

void run_advance(const AdvanceArgs& args, Workspace, const Stream& stream) {
  AdvanceParameters p{};
  p.count = static_cast<std::int32_t>(args.tokens.dim(0));
  p.ends = static_cast<std::int32_t>(args.end_tokens.dim(0));
  p.history_slots = static_cast<std::int32_t>(args.history.dim(0));
  p.history_size = static_cast<std::int32_t>(args.history.dim(1));
  p.history_slot = args.history.stride(0);
  Launch launch;
  launch.kernel = args.kName;
  launch.set(p).add(args.tokens).add(args.end_tokens).add(args.ids).add(args.positions).add(args.lengths);
  launch.add(args.slots).add(args.history);
  launch.threads = kMoveThreads;
  launch.grid = {ceil_div(p.count, kMoveThreads), 1, 1};
  make_encoder(args.kName, stream)->launch(launch);
}

constexpr Kernel<RouteTopKArgs> kRoute[] = {{"simdgroup_rows", supports_route, no_workspace<RouteTopKArgs>, run_route}};
constexpr Kernel<AdvanceArgs> kAdvance[] = {
    {"threads", always_supported<AdvanceArgs>, no_workspace<AdvanceArgs>, run_advance}};

}  // namespace

void add_choice_kernels(Backend& backend) {
  std::get<KernelList<RouteTopKArgs>>(backend.kernels) = kRoute;
  std::get<KernelList<AdvanceArgs>>(backend.kernels) = kAdvance;
}

}  // namespace thalweg::metal
