// Logarithms of softmax: of one token of each row, and of its likeliest. Threadgroup: a row. The likeliest are found
// one after the other, each as the largest rank below the one before it.

#include "metal/kernels/logit_rows.h"

[[max_total_threads_per_threadgroup(1024)]] kernel void logprobs(constant LogprobParameters& p [[buffer(0)]],
                                                                 device const float* logits [[buffer(1)]],  // [N,V]
                                                                 device const int* tokens [[buffer(2)]],    // [N]
                                                                 device float* logprob [[buffer(3)]],       // [N]
                                                                 device int* top_tokens [[buffer(4)]],      // [N,K]
                                                                 device float* top_logprobs [[buffer(5)]],  // [N,K]
                                                                 threadgroup ulong* scratch [[threadgroup(0)]],
                                                                 uint3 group [[threadgroup_position_in_grid]],
                                                                 uint thread_index [[thread_index_in_threadgroup]],
                                                                 uint simdgroup [[simdgroup_index_in_threadgroup]],
                                                                 uint simdgroups [[simdgroups_per_threadgroup]],
                                                                 uint lane [[thread_index_in_simdgroup]]) {
  const int n = int(group.x);
  device const float* values = logits + n * p.logits_row;
  const bool absent = kIndexed && tokens[n] < 0;
  ulong largest = 0;
  for (int token = int(thread_index); !absent && token < p.vocabulary; token += kSampleThreads) {
    largest = max(largest, rank_of(values[token], token));
  }
  largest = threadgroup_max(largest, scratch, simdgroup, simdgroups, lane);
  if (absent || !has_probabilities(largest)) {
    const float value = absent ? 0.0f : as_type<float>(0x7FC00000u);
    if (kIndexed && thread_index == 0) logprob[n] = value;
    for (int i = int(thread_index); i < p.count; i += kSampleThreads) {
      top_tokens[n * p.top_tokens_row + i] = -1;
      top_logprobs[n * p.top_logprobs_row + i] = value;
    }
    return;
  }
  const float top = logit_of(key_of_rank(largest));
  // Compensated: a vocabulary's worth of roundings would show.
  float sum = 0.0f;
  float lost = 0.0f;
  for (int token = int(thread_index); token < p.vocabulary; token += kSampleThreads) {
    const float term = precise::exp(values[token] - top) - lost;
    const float next = sum + term;
    lost = (next - sum) - term;
    sum = next;
  }
  threadgroup float* sums = (threadgroup float*)(scratch + 32);  // [simdgroups]
  const float own = simd_sum(sum);
  if (lane == 0) sums[simdgroup] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (uint i = 0; i < simdgroups; ++i) total += sums[i];
  const float normalizer = precise::log(total);
  if (kIndexed && thread_index == 0) logprob[n] = (values[min(tokens[n], p.vocabulary - 1)] - top) - normalizer;
  ulong last = kNoNumber;
  for (int i = 0; i < p.count; ++i) {
    ulong best = 0;
    for (int token = int(thread_index); token < p.vocabulary; token += kSampleThreads) {
      const ulong rank = rank_of(values[token], token);
      if (rank < last) best = max(best, rank);
    }
    last = threadgroup_max(best, scratch, simdgroup, simdgroups, lane);
    if (thread_index != 0) continue;
    top_tokens[n * p.top_tokens_row + i] = token_of_rank(last);
    top_logprobs[n * p.top_logprobs_row + i] = (logit_of(key_of_rank(last)) - top) - normalizer;
  }
}
