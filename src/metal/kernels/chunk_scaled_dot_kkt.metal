// a = beta_i (k_i . k_j) exp(G_i - G_j) below the diagonal. Threadgroup: a chunk and a key head. It computes k k^T
// once, on and below the diagonal, for all value heads of the key head.

#include "metal/kernels/tiles.h"

[[max_total_threads_per_threadgroup(128)]] kernel void chunk_scaled_dot_kkt(
    constant KktParameters& p [[buffer(0)]],
    device const void* k [[buffer(1)]],      // [B,T,HK,K]
    device const float* beta [[buffer(2)]],  // [B,T,HV]
    device const float* g [[buffer(3)]],     // [B,T,HV]
    device const int* bounds [[buffer(4)]],  // [N+1]
    device float* a [[buffer(5)]],           // [B,T,HV,C]
    threadgroup float* scratch [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float* rows = scratch;                          // [64][32] of k
  threadgroup float* scaled = rows + kMaxChunk * kBlock;      // the same, times beta and rounded, for kSeed
  threadgroup float* products = scaled + kMaxChunk * kBlock;  // lower [C,C]
  threadgroup float* gates = products + kLowerFloats;         // [64]
  threadgroup float* betas = gates + kMaxChunk;               // [64]
  const Chunk chunk = find_chunk(p.sequences, bounds, int(group.x));
  const int kh = int(group.y);
  const int heads = p.hv / p.hk;
  if (chunk.length == 0) return;

  // Under kSeed, beta k is rounded before the product, which therefore differs between value heads.
  const int passes = kSeed ? heads : 1;
  for (int pass = 0; pass < passes; ++pass) {
    if (kSeed) stage_vector(betas, beta, p.beta, chunk, value_head(kh, pass, p.hk, p.hv), thread_index);
    LowerTiles sums;
    clear(sums);
    for (int column = 0; column < kHeadK; column += kBlock) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      stage(rows, k, p.k, chunk, kh, column, kHeadK, thread_index);
      if (kSeed) {
        // Each thread scales the elements that it staged itself.
        for (int i = int(thread_index); i < kChunk * kBlock; i += int(kThreads)) {
          scaled[i] = seed_round(rows[i] * betas[i / kBlock]);
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply_lower(sums, kSeed ? scaled : rows, rows, simdgroup);
    }
    store_lower(sums, products, simdgroup);
    for (int head = kSeed ? pass : 0; head < (kSeed ? pass + 1 : heads); ++head) {
      const int h = value_head(kh, head, p.hk, p.hv);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      stage_vector(gates, g, p.g, chunk, h, thread_index);
      if (!kSeed) stage_vector(betas, beta, p.beta, chunk, h, thread_index);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int cell = int(thread_index); cell < chunk.length * kChunk; cell += int(kThreads)) {
        const int i = cell / kChunk;
        const int j = cell % kChunk;
        float value = 0.0f;
        if (j < i) {
          value = products[lower_element(i, j)] * precise::exp(gates[i] - gates[j]);
          if (!kSeed) value *= betas[i];
        }
        a[at(p.a, chunk.row, chunk.begin + i, h) + j] = value;
      }
    }
  }
}
