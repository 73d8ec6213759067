// Prefill, first pass: everything that does not depend on the state. Threadgroup: a chunk and a key head. It computes
// k k^T and q k^T once, on and below the diagonal, for all value heads of the key head, and writes a record per value
// head: (I + A)^-1, scale tril(q k^T exp(G_i - G_j)), and the factors of the chunk's rows.

#include "metal/kernels/gates.h"
#include "metal/kernels/invert.h"

// block [64][kBlock] = rows of q or k times the norm's weights; squares [64] += sums of squares of the unweighted rows.
inline void stage_weighted(threadgroup float* block, threadgroup float* squares, device const void* data,
                           constant View& view, device const void* weights, int64_t weight_head, Chunk chunk, int head,
                           int column, uint simdgroup, uint lane) {
  const int index = column + int(lane);
  const float weight =
      kNorm == kNormRms && index < kHeadK ? load(weights, kWeightType, head * weight_head + index) : 1.0f;
  for (int row = int(simdgroup); row < kChunk; row += int(kSimdgroups)) {
    const bool inside = row < chunk.length && index < kHeadK;
    const float value = inside ? load(data, kType, at(view, chunk.row, chunk.begin + row, head) + index) : 0.0f;
    block[row * kBlock + int(lane)] = value * weight;
    if (kNorm) {
      const float sum = simd_sum(value * value);
      if (lane == 0) squares[row] = column == 0 ? sum : squares[row] + sum;
    }
  }
}

// The factors of a chunk's rows.
struct RowFactors {
  threadgroup float* gates;    // [64] G, the sum of gates up to the row
  threadgroup float* betas;    // [64]
  threadgroup float* q_norms;  // [64] sums of squares, then factors
  threadgroup float* k_norms;  // [64]
};

// Called by a simdgroup.
inline void stage_gates(RowFactors rows, device const void* g, device const void* beta, device const void* a_log,
                        device const void* dt_bias, constant GateViews& views, Chunk chunk, int head, uint lane) {
  float before = 0.0f;
  for (int row = int(lane); row < kMaxChunk; row += 32) {
    Gate gate;
    gate.g = 0.0f;
    gate.beta = 0.0f;
    if (row < chunk.length) gate = gate_at(g, beta, a_log, dt_bias, views, chunk.row, chunk.begin + row, head);
    rows.gates[row] = before + simd_prefix_inclusive_sum(gate.g);
    rows.betas[row] = gate.beta;
    before += simd_sum(gate.g);
  }
}

// From lower = q k^T and key_products = k k^T, `cells` elements in the chunk's rows of tiles: to = scale tril(q k^T
// exp(G_i - G_j)), lower = -A.
inline void apply_decays(device float* to, threadgroup float* lower, threadgroup const float* key_products,
                         RowFactors rows, float scale, Chunk chunk, int cells, uint thread_index) {
  // Elements of all tiles in memory order.
  for (int cell = int(thread_index); cell < cells; cell += int(kThreads)) {
    const TileIndex tile = tile_index(cell / kTileFloats);
    const int row = tile.row * 8 + cell % kTileFloats / 8;
    const int column = tile.column * 8 + cell % 8;
    const bool inside = column <= row && row < chunk.length;
    const float decay = inside ? precise::exp(rows.gates[row] - rows.gates[column]) * rows.k_norms[column] : 0.0f;
    to[cell] = scale * rows.q_norms[row] * decay * lower[cell];
    lower[cell] = column < row ? -rows.betas[row] * rows.k_norms[row] * decay * key_products[cell] : 0.0f;
  }
  // invert() also reads the rows of tiles beyond the chunk's end.
  for (int cell = cells + int(thread_index); cell < kLowerFloats; cell += int(kThreads)) lower[cell] = 0.0f;
}

inline void store_factors(device float* factors, RowFactors rows, float scale, Chunk chunk, int row) {
  const float last = rows.gates[chunk.length - 1];
  const float decay = precise::exp(rows.gates[row]);
  factors[row] = rows.betas[row];                                                           // of v
  factors[kMaxChunk + row] = -rows.betas[row] * decay * rows.k_norms[row];                  // of k, before
  factors[2 * kMaxChunk + row] = scale * decay * rows.q_norms[row];                         // of q
  factors[3 * kMaxChunk + row] = precise::exp(last - rows.gates[row]) * rows.k_norms[row];  // of k, after
  if (row == 0) factors[4 * kMaxChunk] = precise::exp(last);                                // of the state
}

[[max_total_threads_per_threadgroup(128)]] kernel void chunk_prepare(
    constant PrepareParameters& p [[buffer(0)]],
    device const void* q [[buffer(1)]],         // [B,T,HK,K]
    device const void* k [[buffer(2)]],         // [B,T,HK,K]
    device const void* g [[buffer(3)]],         // [B,T,HV], or a
    device const void* beta [[buffer(4)]],      // [B,T,HV], or b
    device const void* a_log [[buffer(5)]],     // [HV]
    device const void* dt_bias [[buffer(6)]],   // [HV]
    device const void* q_weight [[buffer(7)]],  // [HK,K]
    device const void* k_weight [[buffer(8)]],  // [HK,K]
    device const int* bounds [[buffer(9)]],     // [N+1]
    device float* records [[buffer(10)]],       // [chunks,HV,kRecordFloats]
    threadgroup float* scratch [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float* products = scratch;                // lower [C,C]: k k^T
  threadgroup float* lower = products + kLowerFloats;   // lower [C,C]
  threadgroup float* temporary = lower + kLowerFloats;  // 16 tiles
  RowFactors rows;
  rows.gates = temporary + 16 * kTileFloats;
  rows.betas = rows.gates + kMaxChunk;
  rows.q_norms = rows.betas + kMaxChunk;
  rows.k_norms = rows.q_norms + kMaxChunk;
  threadgroup float* q_rows = products;  // [64][32], until the products are stored
  threadgroup float* k_rows = products + kMaxChunk * kBlock;
  const Chunk chunk = find_chunk(p.sequences, bounds, int(group.x));
  const int kh = int(group.y);
  const int heads = p.hv / p.hk;
  if (chunk.length == 0) return;

  LowerTiles key_products;
  LowerTiles query_products;
  clear(key_products);
  clear(query_products);
  for (int column = 0; column < kHeadK; column += kBlock) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage_weighted(q_rows, rows.q_norms, q, p.q, q_weight, p.q_weight_head, chunk, kh, column, simdgroup, lane);
    stage_weighted(k_rows, rows.k_norms, k, p.k, k_weight, p.k_weight_head, chunk, kh, column, simdgroup, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply_lower(key_products, k_rows, k_rows, simdgroup);
    multiply_lower(query_products, q_rows, k_rows, simdgroup);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  store_lower(key_products, products, simdgroup);
  if (int(thread_index) < kChunk) {
    rows.q_norms[thread_index] = kNorm ? norm_factor(rows.q_norms[thread_index], p.norm_eps) : 1.0f;
    rows.k_norms[thread_index] = kNorm ? norm_factor(rows.k_norms[thread_index], p.norm_eps) : 1.0f;
  }

  const int cells = lower_tile((chunk.length + 7) / 8, 0);  // elements in the chunk's rows of tiles
  for (int i = 0; i < heads; ++i) {
    const int h = value_head(kh, i, p.hk, p.hv);
    device float* record = records + (int64_t(group.x) * p.hv + h) * kRecordFloats;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) stage_gates(rows, g, beta, a_log, dt_bias, p.gates, chunk, h, lane);
    store_lower(query_products, lower, simdgroup);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    apply_decays(record + kLowerFloats, lower, products, rows, p.scale, chunk, cells, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    invert(lower, temporary, thread_index, simdgroup);
    for (int cell = int(thread_index); cell < cells; cell += int(kThreads)) record[cell] = lower[cell];
    if (int(thread_index) < chunk.length) {
      store_factors(record + 2 * kLowerFloats, rows, p.scale, chunk, int(thread_index));
    }
  }
}
