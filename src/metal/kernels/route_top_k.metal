// The best experts of each token and their weights. Threadgroup: a simdgroup for a token. Each choice is the first that
// follows the one before it in the order of logits, or with a bias of scores + bias, so that nothing needs to be
// marked.

#include "metal/kernels/parameters_layers.h"

#include "metal/kernels/common.h"
#include "metal/kernels/gates.h"

// Whether (a, i) precedes (b, j): the larger logit, among equals the lower id.
inline bool precedes(float a, int i, float b, int j) { return a > b || (a == b && i < j); }

[[max_total_threads_per_threadgroup(32)]] kernel void route_top_k(constant RouteParameters& p [[buffer(0)]],
                                                                  device const void* logits [[buffer(1)]],  // [T,E]
                                                                  device const float* bias [[buffer(2)]],   // [E]
                                                                  device int* ids [[buffer(3)]],            // [T,S]
                                                                  device float* weights [[buffer(4)]],      // [T,S]
                                                                  threadgroup float* cached [[threadgroup(0)]],
                                                                  uint3 group [[threadgroup_position_in_grid]],
                                                                  uint lane [[thread_index_in_simdgroup]]) {
  const float infinity = as_type<float>(0x7F800000u);
  const int64_t token = int64_t(group.x);
  const bool sigmoid_score = p.sigmoid != 0;
  const bool biased = p.biased != 0;
  device int* chosen = ids + token * p.ids_token;
  device float* shares = weights + token * p.weights_token;
  // A lane reads only what it has written itself.
  float largest = -infinity;
  for (int e = int(lane); e < p.experts; e += 32) {
    const float logit = load(logits, kType, token * p.logits_token + e);
    cached[e] = logit >= -infinity ? logit : -infinity;  // NaN comes last
    largest = max(largest, cached[e]);
  }
  for (uint distance = 16; distance > 0; distance /= 2) largest = max(largest, simd_shuffle_xor(largest, distance));
  float sum = 1.0f;  // of the shares of all experts
  if (!sigmoid_score && (biased || p.renormalize == 0)) {
    sum = 0.0f;
    for (int e = int(lane); e < p.experts; e += 32) sum += precise::exp(cached[e] - largest);
    sum = simd_sum(sum);
  }
  if (biased) {
    for (int e = int(lane); e < p.experts; e += 32) {
      cached[e] = sigmoid_score ? sigmoid(cached[e]) : precise::exp(cached[e] - largest) / sum;
    }
  }
  float last = infinity;
  int last_id = -1;
  float total = 0.0f;
  for (int slot = 0; slot < p.slots; ++slot) {
    float best = -infinity;
    int best_id = p.experts;
    for (int e = int(lane); e < p.experts; e += 32) {
      const float value = biased ? cached[e] + bias[e] : cached[e];
      if (!precedes(last, last_id, value, e) || !precedes(value, e, best, best_id)) continue;
      best = value;
      best_id = e;
    }
    for (uint distance = 16; distance > 0; distance /= 2) {
      const float other = simd_shuffle_xor(best, distance);
      const int other_id = simd_shuffle_xor(best_id, distance);
      if (!precedes(other, other_id, best, best_id)) continue;
      best = other;
      best_id = other_id;
    }
    float share = 0.0f;
    if (biased) {
      share = simd_sum(best_id % 32 == int(lane) ? cached[best_id] : 0.0f);  // its lane's alone
    } else {
      share = sigmoid_score ? sigmoid(best) : precise::exp(best - largest) / sum;
    }
    total += share;
    if (lane == 0) {
      chosen[slot] = best_id;
      shares[slot] = share;
    }
    last = best;
    last_id = best_id;
  }
  if (lane != 0 || p.renormalize == 0 || !(total > 0.0f)) return;
  for (int slot = 0; slot < p.slots; ++slot) shares[slot] /= total;
}
