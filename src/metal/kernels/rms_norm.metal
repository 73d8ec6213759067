// y = s * rsqrt(mean s^2 + eps) * weight, s = x + delta. Threadgroup: a row, of which each thread keeps up to eight
// elements in registers; longer rows are read twice.

#include "metal/kernels/parameters_layers.h"
#include "metal/kernels/threadgroup_sum.h"

[[max_total_threads_per_threadgroup(1024)]] kernel void rms_norm(constant NormParameters& p [[buffer(0)]],
                                                                 device const void* x [[buffer(1)]],       // [T,H,D]
                                                                 device const void* delta [[buffer(2)]],   // like x
                                                                 device const void* weight [[buffer(3)]],  // [D]
                                                                 device void* sum [[buffer(4)]],           // like x
                                                                 device void* y [[buffer(5)]],             // like x
                                                                 threadgroup float* scratch [[threadgroup(0)]],
                                                                 uint3 group [[threadgroup_position_in_grid]],
                                                                 uint thread_index [[thread_index_in_threadgroup]],
                                                                 uint simdgroup [[simdgroup_index_in_threadgroup]],
                                                                 uint simdgroups [[simdgroups_per_threadgroup]],
                                                                 uint lane [[thread_index_in_simdgroup]]) {
  const int token = int(group.x);
  const int head = int(group.y);
  const int threads = int(simdgroups) * 32;
  const int64_t from = at(p.x, 0, token, head);
  const int64_t from_other = at(p.other, 0, token, head);
  const int64_t to_sum = at(p.sum, 0, token, head);
  const int64_t to = at(p.y, 0, token, head);
  float kept[kRowElements];
  float squares = 0.0f;
  THALWEG_UNROLL
  for (int i = 0; i < kRowElements; ++i) {
    const int index = i * threads + int(thread_index);
    kept[i] = 0.0f;
    if (index < kWidth) {
      kept[i] = load(x, kType, from + index);
      if (kHasOther) kept[i] += load(delta, kOtherType, from_other + index);
    }
    squares += kept[i] * kept[i];
  }
  for (int index = kRowElements * threads + int(thread_index); index < kWidth; index += threads) {
    float value = load(x, kType, from + index);
    if (kHasOther) value += load(delta, kOtherType, from_other + index);
    squares += value * value;
  }
  const float mean = threadgroup_sum(squares, scratch, simdgroup, simdgroups, lane) / float(kWidth);
  const float factor = precise::rsqrt(mean + p.eps);
  THALWEG_UNROLL
  for (int i = 0; i < kRowElements; ++i) {
    const int index = i * threads + int(thread_index);
    if (index >= kWidth) continue;
    if (kHasSum) store(sum, kType, to_sum + index, kept[i]);
    store(y, kOutType, to + index, kept[i] * factor * (load(weight, kWeightType, index) + p.weight_offset));
  }
  for (int index = kRowElements * threads + int(thread_index); index < kWidth; index += threads) {
    float value = load(x, kType, from + index);
    if (kHasOther) value += load(delta, kOtherType, from_other + index);
    if (kHasSum) store(sum, kType, to_sum + index, value);
    store(y, kOutType, to + index, value * factor * (load(weight, kWeightType, index) + p.weight_offset));
  }
}
