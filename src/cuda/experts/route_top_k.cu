#include <algorithm>
#include <cmath>
#include <string>

#include "cuda/common/pdl.h"
#include "cuda/common/tensor_view.h"
#include "cuda/common/warp.h"
#include "cuda/experts/choose_experts.h"
#include "cuda/experts/routing.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kWarps = 4;

// Whether (a, i) precedes (b, j): the larger logit, among equals the lower id.
__device__ bool before(float a, int i, float b, int j) { return a > b || (a == b && i < j); }

// Chooses experts for any number of slots, one after the other: each is the first that follows the one before it, so
// that nothing needs to be marked. Returns the largest logit.
__device__ float choose_slots(const float* logits, int experts, const Routing& routing, std::int32_t* ids,
                              float* weights, float& total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float largest = 0.0F;
  float last = INFINITY;
  int last_id = -1;
  for (int slot = 0; slot < routing.slots; ++slot) {
    float best = -INFINITY;
    int best_id = experts;
    for (int e = lane; e < experts; e += kWarpSize) {
      if (before(last, last_id, logits[e], e) && before(logits[e], e, best, best_id)) best = logits[e], best_id = e;
    }
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFU, best, distance);
      const int other_id = __shfl_xor_sync(0xFFFFFFFFU, best_id, distance);
      if (before(other, other_id, best, best_id)) best = other, best_id = other_id;
    }
    if (slot == 0) largest = best;
    const float p = expf(best - largest);
    total += p;
    if (lane == 0) {
      ids[slot] = routing.here.index_of(best_id);
      weights[slot] = p;
    }
    last = best;
    last_id = best_id;
  }
  return largest;
}

// A warp per token. kPerLane > 0: at most that many logits per lane, kept in registers, and at most one slot per lane.
template <int kPerLane>
__global__ void __launch_bounds__(kWarps* kWarpSize)
    route(const __grid_constant__ RouterLogits router, const __grid_constant__ Routing routing) {
  extern __shared__ float all_logits[];
  pdl_trigger_and_wait();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * warps + warp;
  if (token >= router.tokens) return;
  float* const logits = all_logits + warp * router.experts;  // a lane reads only what it has written
  with_type(router.logits.dtype, [&]<class T>(T) {
    const T* row = static_cast<const T*>(router.logits.data) + router.logits.offset(token);
    // Many loads at once; splits are added in order.
    constexpr int kAtOnce = 8;
    constexpr int kSplitsAtOnce = 2;
    for (int first = lane; first < router.experts; first += kAtOnce * kWarpSize) {
      float sums[kAtOnce] = {};
      for (int split = 0; split < router.splits; split += kSplitsAtOnce) {
        T read[kSplitsAtOnce][kAtOnce];
#pragma unroll
        for (int j = 0; j < kSplitsAtOnce; ++j) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const int e = first + i * kWarpSize;
            read[j][i] =
                split + j < router.splits && e < router.experts ? row[(split + j) * router.split_stride + e] : T{};
          }
        }
#pragma unroll
        for (int j = 0; j < kSplitsAtOnce; ++j) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) sums[i] += to_f32(read[j][i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int e = first + i * kWarpSize;
        if (e < router.experts) logits[e] = isnan(sums[i]) ? -INFINITY : sums[i];
      }
    }
  });
  std::int32_t* const ids = routing.ids + token * routing.ids_stride;
  float* const weights = routing.weights + token * routing.weights_stride;
  if constexpr (kPerLane > 0) {
    float total = 0.0F;
    const ChosenExpert chosen =
        choose_experts<kPerLane>(logits, router.experts, routing.slots, routing.renormalize ? nullptr : &total);
    const float p = lane < routing.slots ? expf(chosen.logit - __shfl_sync(0xFFFFFFFFU, chosen.logit, 0)) : 0.0F;
    if (routing.renormalize) {
      for (int slot = 0; slot < routing.slots; ++slot) total += __shfl_sync(0xFFFFFFFFU, p, slot);
    }
    if (lane >= routing.slots) return;
    ids[lane] = routing.here.index_of(chosen.id);
    weights[lane] = p / total;
  } else {
    float total = 0.0F;
    const float largest = choose_slots(logits, router.experts, routing, ids, weights, total);
    if (!routing.renormalize) {
      total = 0.0F;
      for (int e = lane; e < router.experts; e += kWarpSize) total += expf(logits[e] - largest);
      total = warp_sum(total);
    }
    __syncwarp();
    for (int slot = lane; slot < routing.slots; slot += kWarpSize) weights[slot] /= total;
  }
}

std::string supports_scored(const RouteTopKArgs& args, const Stream&) {
  if (args.router_logits.dim(1) > kMostRoutedExperts) {
    return "takes at most " + std::to_string(kMostRoutedExperts) + " experts";
  }
  return {};
}

std::string supports_route(const RouteTopKArgs& args, const Stream& stream) {
  if (args.score != RouterScore::kSoftmax || args.bias.defined()) return kOtherRouting;
  return supports_scored(args, stream);
}

RouterLogits logits_of(const RouteTopKArgs& args) {
  RouterLogits logits;
  logits.logits = elements(args.router_logits);
  logits.tokens = args.router_logits.dim(0);
  logits.experts = static_cast<int>(args.router_logits.dim(1));
  return logits;
}
Routing routing_of(const RouteTopKArgs& args) {
  return {static_cast<std::int32_t*>(args.expert_ids.data), args.expert_ids.stride(0),
          static_cast<float*>(args.expert_weights.data),    args.expert_weights.stride(0),
          static_cast<int>(args.expert_ids.dim(1)),         args.renormalize};
}

void run_route(const RouteTopKArgs& args, Workspace, const Stream& stream) {
  const CurrentDevice current(stream, args.kName);
  launch_route(logits_of(args), routing_of(args), properties(stream.device.index), native(stream), args.kName);
}

void run_scored(const RouteTopKArgs& args, Workspace, const Stream& stream) {
  const CurrentDevice current(stream, args.kName);
  launch_scored_route(logits_of(args), routing_of(args), {args.score, static_cast<const float*>(args.bias.data)},
                      properties(stream.device.index), native(stream), args.kName);
}

}  // namespace

void launch_route(const RouterLogits& logits, const Routing& routing, const DeviceProperties& device,
                  cudaStream_t stream, std::string_view operation) {
  if (logits.tokens == 0) return;
  const auto row_bytes = static_cast<std::size_t>(4 * logits.experts);
  const int warps = static_cast<int>(std::clamp<std::size_t>(48 * 1024 / row_bytes, 1, kWarps));
  const bool in_registers = routing.slots <= kWarpSize;
  const auto kernel = in_registers && logits.experts <= 8 * kWarpSize    ? route<8>
                      : in_registers && logits.experts <= 32 * kWarpSize ? route<32>
                                                                         : route<0>;
  pdl_launch(kernel, dim3(static_cast<unsigned>((logits.tokens + warps - 1) / warps)), dim3(warps * kWarpSize),
             row_bytes * warps, device, stream, operation, logits, routing);
}

KernelList<RouteTopKArgs> route_top_k_kernels() {
  static constexpr Kernel<RouteTopKArgs> kKernels[] = {
      {"warps", supports_route, no_workspace<RouteTopKArgs>, run_route},
      {"scored", supports_scored, no_workspace<RouteTopKArgs>, run_scored}};
  return kKernels;
}

}  // namespace thalweg::cu
