// The block as its mathematics says it, one launch for each matmul: router, choice, gate, up, SwiGLU, down, the same of
// the shared expert, and the weighted sum.

#include "cuda/experts/moe_exact.h"

#include "core/arena.h"
#include "cuda/common/pdl.h"
#include "cuda/common/views.h"
#include "cuda/common/warp.h"
#include "cuda/experts/exact.h"
#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/routing.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 256;

// gate = silu(gate) * up, both [count].
__global__ void __launch_bounds__(kThreads) swiglu_in_place(float* gate, const float* up, std::int64_t count) {
  pdl_trigger_and_wait();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) gate[i] = gate[i] / (1.0F + expf(-gate[i])) * up[i];
}

struct WeightedSum {
  const float* products;         // [T,S,D]
  const float* shared;           // [T,D] or null
  const float* weights;          // [T,S]
  Elements x, shared_router, y;  // [T,D], [D], [T,D]
  int slots;
  int columns;
};

// y[t,:] = sum_s weights[t,s] products[t,s,:] + sigmoid(x[t,:] . shared_router) shared[t,:]. A block has one token.
__global__ void __launch_bounds__(kThreads) weighted_sum(const __grid_constant__ WeightedSum p) {
  __shared__ float warp_sums[kThreads / kWarpSize];
  pdl_trigger_and_wait();
  const std::int64_t token = blockIdx.x;
  float gate = 0.0F;
  if (p.shared != nullptr) {
    float logit = 0.0F;
    for (int d = static_cast<int>(threadIdx.x); d < p.columns; d += kThreads) {
      logit = fmaf(p.x.load(p.x.offset(token) + d), p.shared_router.load(d), logit);
    }
    logit = warp_sum(logit);
    if (threadIdx.x % kWarpSize == 0) warp_sums[threadIdx.x / kWarpSize] = logit;
    __syncthreads();
    logit = 0.0F;
    for (const float sum : warp_sums) logit += sum;
    gate = 1.0F / (1.0F + expf(-logit));
  }
  for (int d = static_cast<int>(threadIdx.x); d < p.columns; d += kThreads) {
    float sum = 0.0F;
    for (int slot = 0; slot < p.slots; ++slot) {
      const std::int64_t pair = token * p.slots + slot;
      sum = fmaf(p.weights[pair], p.products[pair * p.columns + d], sum);
    }
    if (p.shared != nullptr) sum = fmaf(gate, p.shared[token * p.columns + d], sum);
    p.y.store(p.y.offset(token) + d, sum);
  }
}

// Intermediate values in the workspace, all f32 but the ids.
struct Buffers {
  Tensor logits;           // [T,E]
  Tensor ids;              // [T,S] i32
  Tensor weights;          // [T,S]
  Tensor gate;             // [T,S,I], then silu(gate) * up
  Tensor up;               // [T,S,I]
  Tensor products;         // [T,S,D]
  Tensor shared_gate;      // [T,J]
  Tensor shared_up;        // [T,J]
  Tensor shared_products;  // [T,D]
  std::size_t bytes = 0;

  Buffers(const MoeFfnArgs& args, Arena arena) {
    const Device device = args.x.device;
    const std::int64_t t = args.x.dim(0);
    const std::int64_t s = args.top_k;
    const std::int64_t d = args.x.dim(1);
    const std::int64_t i = args.gate.dim(1);
    logits = Tensor(arena.take<float>(t * args.router.dim(0)), DType::kF32, {t, args.router.dim(0)}, device);
    ids = Tensor(arena.take<std::int32_t>(t * s), DType::kI32, {t, s}, device);
    weights = Tensor(arena.take<float>(t * s), DType::kF32, {t, s}, device);
    gate = Tensor(arena.take<float>(t * s * i), DType::kF32, {t, s, i}, device);
    up = Tensor(arena.take<float>(t * s * i), DType::kF32, {t, s, i}, device);
    products = Tensor(arena.take<float>(t * s * d), DType::kF32, {t, s, d}, device);
    if (args.shared_gate.defined()) {
      const std::int64_t j = args.shared_gate.dim(0);
      shared_gate = Tensor(arena.take<float>(t * j), DType::kF32, {t, j}, device);
      shared_up = Tensor(arena.take<float>(t * j), DType::kF32, {t, j}, device);
      shared_products = Tensor(arena.take<float>(t * d), DType::kF32, {t, d}, device);
    }
    bytes = arena.used();
  }
};

class Launches {
 public:
  explicit Launches(const Stream& stream) : stream_(stream), device_(properties(stream.device.index)) {}

  void linear(const ConstTensor& x, const ConstTensor& weight, const Tensor& y) const {
    LinearArgs args;
    args.x = x;
    args.weight = weight;
    args.y = y;
    run_exact(expert_matmul(args), weight.dtype, stream_, MoeFfnArgs::kName);
  }
  void by_expert(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& ids, const Tensor& y) const {
    ExpertMatmulArgs args;
    args.x = x;
    args.weight = weight;
    args.expert_ids = ids;
    args.y = y;
    run_exact(expert_matmul(args), weight.dtype, stream_, MoeFfnArgs::kName);
  }
  void route(const MoeFfnArgs& args, const Buffers& buffers) const {
    RouterLogits logits;
    logits.logits = elements(buffers.logits);
    logits.tokens = args.x.dim(0);
    logits.experts = static_cast<int>(args.router.dim(0));
    launch_route(logits,
                 {static_cast<std::int32_t*>(buffers.ids.data), args.top_k, static_cast<float*>(buffers.weights.data),
                  args.top_k, args.top_k, args.renormalize},
                 device_, native(stream_), MoeFfnArgs::kName);
  }
  void swiglu(const Tensor& gate, const Tensor& up) const {
    const std::int64_t count = gate.size();
    pdl_launch(swiglu_in_place, dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), kThreads, 0, device_,
               native(stream_), MoeFfnArgs::kName, static_cast<float*>(gate.data), static_cast<const float*>(up.data),
               count);
  }
  void sum(const MoeFfnArgs& args, const Buffers& buffers) const {
    WeightedSum p{};
    p.products = static_cast<const float*>(buffers.products.data);
    p.shared = static_cast<const float*>(buffers.shared_products.data);
    p.weights = static_cast<const float*>(buffers.weights.data);
    p.x = elements(args.x);
    if (args.shared_gate.defined()) p.shared_router = elements(args.shared_router);
    p.y = elements(args.y);
    p.slots = args.top_k;
    p.columns = static_cast<int>(args.x.dim(1));
    pdl_launch(weighted_sum, dim3(static_cast<unsigned>(args.x.dim(0))), kThreads, 0, device_, native(stream_),
               MoeFfnArgs::kName, p);
  }

 private:
  const Stream& stream_;
  const DeviceProperties& device_;
};

}  // namespace

std::string moe_exact_supports(const MoeFfnArgs& args, const Stream&) {
  if (args.router.dim(0) > kMostRoutedExperts) {
    return "takes at most " + std::to_string(kMostRoutedExperts) + " experts";
  }
  for (const ConstTensor* weight :
       {&args.router, &args.gate, &args.up, &args.down, &args.shared_gate, &args.shared_up, &args.shared_down}) {
    if (!weight->defined()) continue;
    std::string reason = exact_supports(*weight);
    if (!reason.empty()) return reason;
  }
  return {};
}

std::size_t moe_exact_workspace(const MoeFfnArgs& args, const Stream&) { return Buffers(args, Arena()).bytes; }

void run_moe_exact(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  const Buffers buffers(args, Arena(workspace));
  const Launches launches(stream);
  launches.linear(args.x, args.router, buffers.logits);
  launches.route(args, buffers);
  launches.by_expert(args.x, args.gate, buffers.ids, buffers.gate);
  launches.by_expert(args.x, args.up, buffers.ids, buffers.up);
  launches.swiglu(buffers.gate, buffers.up);
  launches.by_expert(buffers.gate, args.down, buffers.ids, buffers.products);
  if (args.shared_gate.defined()) {
    launches.linear(args.x, args.shared_gate, buffers.shared_gate);
    launches.linear(args.x, args.shared_up, buffers.shared_up);
    launches.swiglu(buffers.shared_gate, buffers.shared_up);
    launches.linear(buffers.shared_gate, args.shared_down, buffers.shared_products);
  }
  launches.sum(args, buffers);
}

}  // namespace thalweg::cu
