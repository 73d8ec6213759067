// The likeliest experts of each token and their weights. Threadgroup: a simdgroup for a token. Each choice is the first
// that follows the one before it in the order of logits, so that nothing needs to be marked.

#include "metal/kernels/parameters_layers.h"

#include "metal/kernels/common.h"

// Whether (a, i) precedes (b, j): the larger logit, among equals the lower id.
inline bool precedes(float a, int i, float b, int j) { return a > b || (a == b && i < j); }

[[max_total_threads_per_threadgroup(32)]] kernel void route_top_k(constant RouteParameters& p [[buffer(0)]],
                                                                  device const void* logits [[buffer(1)]],  // [T,E]
                                                                  device int* ids [[buffer(2)]],            // [T,S]
                                                                  device float* weights [[buffer(3)]],      // [T,S]
                                                                  threadgroup float* cached [[threadgroup(0)]],
                                                                  uint3 group [[threadgroup_position_in_grid]],
                                                                  uint lane [[thread_index_in_simdgroup]]) {
  const float infinity = as_type<float>(0x7F800000u);
  const int64_t token = int64_t(group.x);
  device int* chosen = ids + token * p.ids_token;
  device float* shares = weights + token * p.weights_token;
  // A lane reads only what it has written itself.
  for (int e = int(lane); e < p.experts; e += 32) {
    const float logit = load(logits, kType, token * p.logits_token + e);
    cached[e] = logit >= -infinity ? logit : -infinity;  // NaN comes last
  }
  float largest = 0.0f;
  float last = infinity;
  int last_id = -1;
  float total = 0.0f;
  for (int slot = 0; slot < p.slots; ++slot) {
    float best = -infinity;
    int best_id = p.experts;
    for (int e = int(lane); e < p.experts; e += 32) {
      const float logit = cached[e];
      if (!precedes(last, last_id, logit, e) || !precedes(logit, e, best, best_id)) continue;
      best = logit;
      best_id = e;
    }
    for (uint distance = 16; distance > 0; distance /= 2) {
      const float other = simd_shuffle_xor(best, distance);
      const int other_id = simd_shuffle_xor(best_id, distance);
      if (!precedes(other, other_id, best, best_id)) continue;
      best = other;
      best_id = other_id;
    }
    if (slot == 0) largest = best;
    const float share = precise::exp(best - largest);
    total += share;
    if (lane == 0) {
      chosen[slot] = best_id;
      shares[slot] = share;
    }
    last = best;
    last_id = best_id;
  }
  if (p.renormalize == 0) {
    float sum = 0.0f;
    for (int e = int(lane); e < p.experts; e += 32) sum += precise::exp(cached[e] - largest);
    total = simd_sum(sum);
  }
  if (lane != 0) return;
  for (int slot = 0; slot < p.slots; ++slot) shares[slot] /= total;
}
