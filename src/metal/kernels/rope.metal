// Rotary embedding, with the norm of a head before it. Threadgroup: a token, whose cosines and sines are computed once
// for all its heads. Simdgroup: a head, whose pairs of elements each stay with one lane.

#include "metal/kernels/angles.h"
#include "metal/kernels/parameters_layers.h"

[[max_total_threads_per_threadgroup(256)]] kernel void rope(constant RopeParameters& p [[buffer(0)]],
                                                            device const void* x [[buffer(1)]],             // [T,H,D]
                                                            device const int* positions [[buffer(2)]],      // [T]
                                                            device const float* frequencies [[buffer(3)]],  // [pairs]
                                                            device const void* weight [[buffer(4)]],        // [D]
                                                            device void* y [[buffer(5)]],                   // [T,H,D]
                                                            threadgroup float* scratch [[threadgroup(0)]],
                                                            uint3 group [[threadgroup_position_in_grid]],
                                                            uint thread_index [[thread_index_in_threadgroup]],
                                                            uint simdgroup [[simdgroup_index_in_threadgroup]],
                                                            uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float* cosines = scratch;
  threadgroup float* sines = scratch + p.half_pairs;
  const int token = int(group.x);
  for (int i = int(thread_index); i < p.half_pairs; i += kRopeSimdgroups * 32) {
    const Direction direction = direction_of(positions[token], kHasOther ? frequencies[i] : p.frequency[i]);
    cosines[i] = p.scale * direction.cosine;
    sines[i] = p.scale * direction.sine;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int head = int(simdgroup); head < p.heads; head += kRopeSimdgroups) {
    const int64_t from = at(p.x, 0, token, head);
    const int64_t to = at(p.y, 0, token, head);
    float factor = 1.0f;
    if (kNorm) {
      float squares = 0.0f;
      for (int i = int(lane); i < p.half_pairs; i += 32) {
        const float left = load(x, kType, from + i);
        const float right = load(x, kType, from + i + p.half_pairs);
        squares += left * left + right * right;
      }
      for (int i = 2 * p.half_pairs + int(lane); i < kWidth; i += 32) {
        const float value = load(x, kType, from + i);
        squares += value * value;
      }
      factor = precise::rsqrt(simd_sum(squares) / float(kWidth) + p.eps);
    }
    for (int i = int(lane); i < p.half_pairs; i += 32) {
      float left = load(x, kType, from + i);
      float right = load(x, kType, from + i + p.half_pairs);
      if (kNorm) {
        left *= factor * (load(weight, kWeightType, i) + p.weight_offset);
        right *= factor * (load(weight, kWeightType, i + p.half_pairs) + p.weight_offset);
      }
      store(y, kOutType, to + i, left * cosines[i] - right * sines[i]);
      store(y, kOutType, to + i + p.half_pairs, right * cosines[i] + left * sines[i]);
    }
    for (int i = 2 * p.half_pairs + int(lane); i < kWidth; i += 32) {
      float value = load(x, kType, from + i);
      if (kNorm) value *= factor * (load(weight, kWeightType, i) + p.weight_offset);
      store(y, kOutType, to + i, value);
    }
  }
}
