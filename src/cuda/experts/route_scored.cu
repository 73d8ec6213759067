// Routing by any score, with or without a bias. A warp per token: its logits, or with a bias its scores, stand in
// shared memory, a lane reads only what it has written; then the slots are filled one after the other, each with the
// first expert that follows the one before it in the order of what is compared.

#include <algorithm>
#include <cmath>

#include "cuda/common/pdl.h"
#include "cuda/common/tensor_view.h"
#include "cuda/common/warp.h"
#include "cuda/experts/routing.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kWarps = 4;

__device__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

// Whether (a, i) precedes (b, j): the larger value, among equals the lower id.
__device__ bool before(float a, int i, float b, int j) { return a > b || (a == b && i < j); }

// Reads the token's logits, NaN as minus infinity, and returns the largest.
__device__ float read_logits(const RouterLogits& router, std::int64_t token, int lane, float* logits) {
  float largest = -INFINITY;
  with_type(router.logits.dtype, [&]<class T>(T) {
    const T* row = static_cast<const T*>(router.logits.data) + router.logits.offset(token);
    for (int e = lane; e < router.experts; e += kWarpSize) {
      float logit = 0.0F;
      for (int split = 0; split < router.splits; ++split) logit += to_f32(row[split * router.split_stride + e]);
      logits[e] = isnan(logit) ? -INFINITY : logit;
      largest = fmaxf(largest, logits[e]);
    }
  });
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, distance));
  }
  return largest;
}

__global__ void __launch_bounds__(kWarps* kWarpSize)
    route_scored(const __grid_constant__ RouterLogits router, const __grid_constant__ Routing routing,
                 const __grid_constant__ RoutingScore rule) {
  extern __shared__ float all_values[];
  pdl_trigger_and_wait();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * warps + warp;
  if (token >= router.tokens) return;
  float* const values = all_values + warp * router.experts;
  const float largest = read_logits(router, token, lane, values);
  const bool softmax = rule.score == RouterScore::kSoftmax;
  float sum = 1.0F;
  if (softmax) {
    sum = 0.0F;
    for (int e = lane; e < router.experts; e += kWarpSize) sum += expf(values[e] - largest);
    sum = warp_sum(sum);
  }
  const auto score_of = [&](float logit) { return softmax ? expf(logit - largest) / sum : sigmoid(logit); };
  if (rule.bias != nullptr) {
    for (int e = lane; e < router.experts; e += kWarpSize) values[e] = score_of(values[e]);
  }
  const auto compared = [&](int e) { return rule.bias != nullptr ? values[e] + rule.bias[e] : values[e]; };

  std::int32_t* const ids = routing.ids + token * routing.ids_stride;
  float* const weights = routing.weights + token * routing.weights_stride;
  float total = 0.0F;
  float last = INFINITY;
  int last_id = -1;
  for (int slot = 0; slot < routing.slots; ++slot) {
    float best = -INFINITY;
    int best_id = router.experts;
    for (int e = lane; e < router.experts; e += kWarpSize) {
      const float value = compared(e);
      if (before(last, last_id, value, e) && before(value, e, best, best_id)) best = value, best_id = e;
    }
    const int own_id = best_id;
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFU, best, distance);
      const int other_id = __shfl_xor_sync(0xFFFFFFFFU, best_id, distance);
      if (before(other, other_id, best, best_id)) best = other, best_id = other_id;
    }
    // The lane that has found it knows its score.
    const unsigned owner = __ballot_sync(0xFFFFFFFFU, own_id == best_id);
    float weight = 0.0F;
    if (own_id == best_id) weight = rule.bias != nullptr ? values[best_id] : score_of(values[best_id]);
    weight = __shfl_sync(0xFFFFFFFFU, weight, __ffs(static_cast<int>(owner)) - 1);
    total += weight;
    if (lane == slot % kWarpSize) {
      ids[slot] = routing.here.index_of(best_id);
      weights[slot] = weight;
    }
    last = best;
    last_id = best_id;
  }
  if (!routing.renormalize || !(total > 0.0F)) return;
  for (int slot = lane; slot < routing.slots; slot += kWarpSize) weights[slot] /= total;
}

}  // namespace

void launch_scored_route(const RouterLogits& logits, const Routing& routing, const RoutingScore& score,
                         const DeviceProperties& device, cudaStream_t stream, std::string_view operation) {
  if (logits.tokens == 0) return;
  const auto row_bytes = static_cast<std::size_t>(4 * logits.experts);
  const int warps = static_cast<int>(std::clamp<std::size_t>(48 * 1024 / row_bytes, 1, kWarps));
  pdl_launch(route_scored, dim3(static_cast<unsigned>((logits.tokens + warps - 1) / warps)), dim3(warps * kWarpSize),
             row_bytes * warps, device, stream, operation, logits, routing, score);
}

}  // namespace thalweg::cu
