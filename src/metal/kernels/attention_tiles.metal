// Attention of many new tokens, in tiles of 32 rows, each a token and one of the query heads that share a key head.
// Threadgroup: a tile and a key head, eight simdgroups. A simdgroup has eight rows and half of the columns of queries
// and outputs in registers; keys, then values, are staged for 16 positions at a time, whose scores' two halves meet in
// threadgroup memory. Rows beyond the sequence see nothing.

#include <metal_simdgroup_matrix>

#include "metal/kernels/cache_places.h"
#include "metal/kernels/gates.h"

constant constexpr int kHalfTiles = kMaxHeadSize / 16;  // column tiles of half a head, at most
constant constexpr int kTileThreads = 256;
constant constexpr int kScoreFloats = kAttentionRows * kAttentionKeys;

inline int half_tiles() { return (kWidth + 15) / 16; }
inline int padded_width() { return half_tiles() * 16; }

struct HalfRows {
  simdgroup_float8x8 tile[kHalfTiles];
};

// The rows of a threadgroup.
struct RowTileOf {
  Sequence sequence;
  int first_token;  // among the sequence's new ones
  int first_head;
  int heads;  // of each token
};

struct TileRow {
  bool exists;
  int token;  // of the batch
  int head;
  int visible;
};

inline TileRow tile_row(thread const RowTileOf& tile, constant AttentionParameters& p, int row) {
  TileRow result;
  const int index = tile.first_token + row / p.rows_heads;
  const int head = row % p.rows_heads;
  const bool inside = row < p.rows_heads * p.rows_tokens;
  result.exists = inside && head < tile.heads && index < tile.sequence.fresh;
  result.token = tile.sequence.begin + index;
  result.head = tile.first_head + head;
  result.visible = result.exists ? tile.sequence.length - tile.sequence.fresh + index + 1 : 0;
  return result;
}

// Finds the sequence of block `block` of all sequences' blocks of tokens.
inline RowTileOf find_tile(constant AttentionParameters& p, device const int* bounds, device const int* lengths,
                           device const int* slots, device const int* pages, int block, int group) {
  RowTileOf tile;
  const int ratio = p.heads / p.key_heads;
  const int within = group % p.groups * p.rows_heads;
  tile.first_head = group / p.groups * ratio + within;
  tile.heads = min(int(p.rows_heads), ratio - within);
  tile.first_token = 0;
  for (int n = 0; n < p.cache.sequences; ++n) {
    tile.sequence = sequence_at(p.cache, bounds, lengths, slots, pages, n);
    const int blocks = (tile.sequence.fresh + p.rows_tokens - 1) / p.rows_tokens;
    if (block < blocks) {
      tile.first_token = block * p.rows_tokens;
      return tile;
    }
    block -= blocks;
  }
  tile.sequence.index = -1;
  return tile;
}

// staged [16][padded width] = rows of the cache from `position` on, zeros beyond the sequence and the head.
inline void stage_cache(threadgroup float* staged, device const void* data, constant AttentionParameters& p,
                        constant View& view, device const int* slots, device const int* pages, Sequence sequence,
                        int position, int key_head_index, uint thread_index) {
  for (int i = int(thread_index); i < kAttentionKeys * padded_width(); i += kTileThreads) {
    const int column = i % padded_width();
    const int at_position = position + i / padded_width();
    float value = 0.0f;
    if (at_position < sequence.length && column < kWidth) {
      const int64_t row = place_of(p.cache, view, slots, pages, sequence.index, at_position);
      if (row >= 0) value = load_cached(data, row + key_head_index * view.head + column);
    }
    staged[i] = value;
  }
}

// Queries of a simdgroup's rows and columns, through its own tile: lane l has elements l and l + 32.
inline void load_queries(thread HalfRows& queries, device const void* q, constant AttentionParameters& p,
                         thread const RowTileOf& tile, int first_row, int first_column, threadgroup float* own,
                         uint lane) {
  THALWEG_UNROLL
  for (int c = 0; c < kHalfTiles; ++c) {
    if (c >= half_tiles()) continue;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = int(lane); i < kTileFloats; i += 32) {
      const TileRow row = tile_row(tile, p, first_row + i / 8);
      const int column = first_column + c * 8 + i % 8;
      const bool inside = row.exists && column < kWidth;
      own[i] = inside ? p.scale * load(q, kType, at(p.q, 0, row.token, row.head) + column) : 0.0f;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_load(queries.tile[c], own);
  }
}

// outputs = factors outputs; factors is diagonal.
inline void scale_outputs(thread HalfRows& outputs, threadgroup const float* factors) {
  simdgroup_float8x8 scaled;
  simdgroup_load(scaled, factors);
  THALWEG_UNROLL
  for (int c = 0; c < kHalfTiles; ++c) {
    if (c >= half_tiles()) continue;
    simdgroup_float8x8 sum;
    simdgroup_multiply(sum, scaled, outputs.tile[c]);
    outputs.tile[c] = sum;
  }
}

inline void write_outputs(thread const HalfRows& outputs, device const void* gate, device void* o,
                          constant AttentionParameters& p, thread const RowTileOf& tile, int first_row,
                          int first_column, threadgroup float* own, uint lane) {
  THALWEG_UNROLL
  for (int c = 0; c < kHalfTiles; ++c) {
    if (c >= half_tiles()) continue;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_store(outputs.tile[c], own);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = int(lane); i < kTileFloats; i += 32) {
      const TileRow row = tile_row(tile, p, first_row + i / 8);
      const int column = first_column + c * 8 + i % 8;
      if (!row.exists || column >= kWidth) continue;
      float value = own[i];
      if (kHasOther) value *= sigmoid(load(gate, kType, at(p.gate, 0, row.token, row.head) + column));
      store(o, kOutType, at(p.o, 0, row.token, row.head) + column, value);
    }
  }
}

// A simdgroup's half of the products of its queries with 16 keys.
inline void multiply_keys(thread const HalfRows& queries, threadgroup const float* staged, int first_column,
                          threadgroup float* scores) {
  simdgroup_float8x8 products[2];
  THALWEG_UNROLL
  for (int k = 0; k < 2; ++k) products[k] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  THALWEG_UNROLL
  for (int c = 0; c < kHalfTiles; ++c) {
    if (c >= half_tiles()) continue;
    THALWEG_UNROLL
    for (int k = 0; k < 2; ++k) {
      simdgroup_float8x8 key;
      simdgroup_load(key, staged + k * 8 * padded_width() + first_column + c * 8, padded_width(), 0, true);
      simdgroup_multiply_accumulate(products[k], queries.tile[c], key, products[k]);
    }
  }
  THALWEG_UNROLL
  for (int k = 0; k < 2; ++k) simdgroup_store(products[k], scores + k * 8, kAttentionKeys);
}

// outputs += shares values, for 16 positions.
inline void add_values(thread HalfRows& outputs, threadgroup const float* weights, threadgroup const float* staged,
                       int first_column) {
  simdgroup_float8x8 shares[2];
  THALWEG_UNROLL
  for (int k = 0; k < 2; ++k) simdgroup_load(shares[k], weights + k * 8, kAttentionKeys);
  THALWEG_UNROLL
  for (int c = 0; c < kHalfTiles; ++c) {
    if (c >= half_tiles()) continue;
    THALWEG_UNROLL
    for (int k = 0; k < 2; ++k) {
      simdgroup_float8x8 value;
      simdgroup_load(value, staged + k * 8 * padded_width() + first_column + c * 8, padded_width());
      simdgroup_multiply_accumulate(outputs.tile[c], shares[k], value, outputs.tile[c]);
    }
  }
}

// A row's softmax as positions pass. Eight threads have a row, two positions of each 16.
struct RowSoftmax {
  float largest;
  float total;
};

// Turns the row's scores into weights, and returns what earlier weights are multiplied by.
inline float advance_softmax(thread RowSoftmax& softmax, threadgroup float* row, int column, int seen) {
  const float infinity = as_type<float>(0x7F800000u);
  float score[2];
  float top = softmax.largest;
  THALWEG_UNROLL
  for (int k = 0; k < 2; ++k) {
    const int index = column + 8 * k;
    score[k] = index < seen ? row[index] + row[kScoreFloats + index] : -infinity;
    top = max(top, score[k]);
  }
  for (uint distance = 1; distance < 8; distance *= 2) top = max(top, simd_shuffle_xor(top, distance));
  const bool seen_any = top > -infinity;
  const float correction = seen_any ? precise::exp(softmax.largest - top) : 1.0f;
  float weights = 0.0f;
  THALWEG_UNROLL
  for (int k = 0; k < 2; ++k) {
    const float weight = seen_any ? precise::exp(score[k] - top) : 0.0f;
    row[column + 8 * k] = weight;
    weights += weight;
  }
  for (uint distance = 1; distance < 8; distance *= 2) weights += simd_shuffle_xor(weights, distance);
  softmax.total = softmax.total * correction + weights;
  softmax.largest = top;
  return correction;
}

[[max_total_threads_per_threadgroup(256)]] kernel void attention_tiles(
    constant AttentionParameters& p [[buffer(0)]],
    device const void* q [[buffer(1)]],       // [T,HQ,D]
    device const void* keys [[buffer(2)]],    // [slots,S,HKV,D]
    device const void* values [[buffer(3)]],  // [slots,S,HKV,D]
    device const int* bounds [[buffer(4)]],   // [N+1]
    device const int* lengths [[buffer(5)]],  // [N]
    device const int* slots [[buffer(6)]],    // [N]
    device const int* pages [[buffer(7)]],    // [N,P]
    device const void* gate [[buffer(8)]],    // [T,HQ,D]
    device void* o [[buffer(9)]],             // [T,HQ,D]
    threadgroup float* scratch [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float* scores = scratch;                                                // [2][32][16]
  threadgroup float* factors = scores + 2 * kScoreFloats;                             // 4 diagonal tiles
  threadgroup float* own = factors + 4 * kTileFloats + int(simdgroup) * kTileFloats;  // a tile of each simdgroup
  threadgroup float* staged = factors + 12 * kTileFloats;                             // [16][padded width]
  const RowTileOf tile = find_tile(p, bounds, lengths, slots, pages, int(group.x), int(group.y));
  if (tile.sequence.index < 0) return;
  const int key_head_index = int(group.y) / p.groups;
  const int row_tile = int(simdgroup) / 2;
  const int half_index = int(simdgroup) % 2;
  const int first_column = half_index * half_tiles() * 8;

  HalfRows queries;
  HalfRows outputs;
  load_queries(queries, q, p, tile, row_tile * 8, first_column, own, lane);
  THALWEG_UNROLL
  for (int c = 0; c < kHalfTiles; ++c) outputs.tile[c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (int i = int(thread_index); i < 4 * kTileFloats; i += kTileThreads) factors[i] = 0.0f;

  const int score_row = int(thread_index) / 8;
  const int score_column = int(thread_index) % 8;
  const int visible = tile.sequence.absent ? 0 : tile_row(tile, p, score_row).visible;
  threadgroup float* factor = factors + score_row / 8 * kTileFloats + score_row % 8 * 9;  // on the diagonal
  RowSoftmax softmax;
  softmax.largest = -as_type<float>(0x7F800000u);
  softmax.total = 0.0f;
  const int last_token = min(tile.first_token + int(p.rows_tokens), tile.sequence.fresh);
  const int end = tile.sequence.absent ? 0 : tile.sequence.length - tile.sequence.fresh + last_token;
  threadgroup float* own_scores = scores + row_tile * 8 * kAttentionKeys;
  for (int position = 0; position < end; position += kAttentionKeys) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage_cache(staged, keys, p, p.cache.keys, slots, pages, tile.sequence, position, key_head_index, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply_keys(queries, staged, first_column, own_scores + half_index * kScoreFloats);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage_cache(staged, values, p, p.cache.values, slots, pages, tile.sequence, position, key_head_index, thread_index);
    const float correction =
        advance_softmax(softmax, scores + score_row * kAttentionKeys, score_column, visible - position);
    if (score_column == 0) *factor = correction;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    scale_outputs(outputs, factors + row_tile * kTileFloats);
    add_values(outputs, own_scores, staged, first_column);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (score_column == 0) *factor = softmax.total > 0.0f ? 1.0f / softmax.total : 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  scale_outputs(outputs, factors + row_tile * kTileFloats);
  write_outputs(outputs, gate, o, p, tile, row_tile * 8, first_column, own, lane);
}
