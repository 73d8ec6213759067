// y = sum over slots of weight_s output_s, and the shared expert's output with its own weight. Threadgroup: 512 columns
// of a token.

#include "metal/kernels/gates.h"
#include "metal/kernels/parameters_layers.h"

[[max_total_threads_per_threadgroup(128)]] kernel void combine_experts(
    constant CombineParameters& p [[buffer(0)]],
    device const float* outputs [[buffer(1)]],       // [T,S,D]
    device const float* weights [[buffer(2)]],       // [T,S]
    device const float* shared [[buffer(3)]],        // [T,D]
    device const float* shared_logit [[buffer(4)]],  // [T]
    device void* y [[buffer(5)]],                    // [T,D]
    uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  const int64_t token = int64_t(group.y);
  const int first = int(group.x) * kMovedElements * kMoveThreads + int(thread_index);
  float sums[kMovedElements];
  THALWEG_UNROLL
  for (int i = 0; i < kMovedElements; ++i) sums[i] = 0.0f;
  for (int slot = 0; slot < p.slots; ++slot) {
    const int64_t pair = token * p.slots + slot;
    const float weight = weights[pair];
    THALWEG_UNROLL
    for (int i = 0; i < kMovedElements; ++i) {
      const int column = first + i * kMoveThreads;
      if (column < kWidth) sums[i] += weight * outputs[pair * kWidth + column];
    }
  }
  const float gate = kShared ? sigmoid(shared_logit[token]) : 0.0f;
  THALWEG_UNROLL
  for (int i = 0; i < kMovedElements; ++i) {
    const int column = first + i * kMoveThreads;
    if (column >= kWidth) continue;
    if (kShared) sums[i] += gate * shared[token * kWidth + column];
    store(y, kOutType, token * p.y_token + column, sums[i]);
  }
}
