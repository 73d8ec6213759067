// y = x * rsqrt(mean x^2 + eps) * weight * silu(z). Threadgroup: a row, as of rms_norm.

#include "metal/kernels/gates.h"
#include "metal/kernels/parameters_layers.h"
#include "metal/kernels/threadgroup_sum.h"

[[max_total_threads_per_threadgroup(1024)]] kernel void gated_rms_norm(
    constant NormParameters& p [[buffer(0)]],
    device const void* x [[buffer(1)]],       // [T,H,D]
    device const void* z [[buffer(2)]],       // [T,H,D]
    device const void* weight [[buffer(3)]],  // [D]
    device void* y [[buffer(4)]],             // [T,H,D]
    device const int* indices [[buffer(5)]],  // of the sequences that the rows belong to: those without a slot are left
    threadgroup float* scratch [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const int token = int(group.x);
  const int head = int(group.y);
  if (kIndexed && !slot_of(indices, token / p.tokens, p.slots).valid) return;
  const int threads = int(simdgroups) * 32;
  const int64_t from = at(p.x, 0, token, head);
  const int64_t from_other = at(p.other, 0, token, head);
  const int64_t to = at(p.y, 0, token, head);
  float kept[kRowElements];
  float squares = 0.0f;
  THALWEG_UNROLL
  for (int i = 0; i < kRowElements; ++i) {
    const int index = i * threads + int(thread_index);
    kept[i] = index < kWidth ? load(x, kType, from + index) : 0.0f;
    squares += kept[i] * kept[i];
  }
  for (int index = kRowElements * threads + int(thread_index); index < kWidth; index += threads) {
    const float value = load(x, kType, from + index);
    squares += value * value;
  }
  const float mean = threadgroup_sum(squares, scratch, simdgroup, simdgroups, lane) / float(kWidth);
  const float factor = precise::rsqrt(mean + p.eps);
  THALWEG_UNROLL
  for (int i = 0; i < kRowElements; ++i) {
    const int index = i * threads + int(thread_index);
    if (index >= kWidth) continue;
    const float gate = silu(load(z, kOtherType, from_other + index));
    store(y, kOutType, to + index, kept[i] * factor * load(weight, kWeightType, index) * gate);
  }
  for (int index = kRowElements * threads + int(thread_index); index < kWidth; index += threads) {
    const float gate = silu(load(z, kOtherType, from_other + index));
    const float value = load(x, kType, from + index);
    store(y, kOutType, to + index, value * factor * load(weight, kWeightType, index) * gate);
  }
}
