// Attention of few new tokens: the context is split over threadgroups, whose parts a second launch joins. Threadgroup:
// a token, a span of positions and up to four query heads of a key head, which share the keys and values that are read.
// Simdgroup: every fourth position; lanes share the elements of a head.

#include "metal/kernels/cache_places.h"
#include "metal/kernels/gates.h"

constant constexpr int kLaneElements = kMaxHeadSize / 32;

struct HeadRow {
  float element[kLaneElements];
};

inline HeadRow load_query(device const void* q, int64_t from, uint lane) {
  HeadRow row;
  THALWEG_UNROLL
  for (int i = 0; i < kLaneElements; ++i) {
    const int index = i * 32 + int(lane);
    row.element[i] = i * 32 < kWidth && index < kWidth ? load(q, kType, from + index) : 0.0f;
  }
  return row;
}

inline HeadRow load_cached_row(device const void* data, int64_t from, uint lane) {
  HeadRow row;
  THALWEG_UNROLL
  for (int i = 0; i < kLaneElements; ++i) {
    const int index = i * 32 + int(lane);
    row.element[i] = i * 32 < kWidth && index < kWidth ? load_cached(data, from + index) : 0.0f;
  }
  return row;
}

// The output of a token and head, element by element.
inline void write_output(device void* o, device const void* gate, constant AttentionParameters& p, int token, int head,
                         int column, float value) {
  if (kHasOther) value *= sigmoid(load(gate, kType, at(p.gate, 0, token, head) + column));
  store(o, kOutType, at(p.o, 0, token, head) + column, value);
}

inline float no_score() { return -as_type<float>(0x7F800000u); }

// A query head's online softmax over positions: sums of weights times values, their largest score, the sum of weights.
struct HeadSoftmax {
  HeadRow sum;
  float largest;
  float total;
};

inline HeadSoftmax no_positions() {
  HeadSoftmax softmax;
  softmax.largest = no_score();
  softmax.total = 0.0f;
  THALWEG_UNROLL
  for (int i = 0; i < kLaneElements; ++i) softmax.sum.element[i] = 0.0f;
  return softmax;
}

inline void add_position(thread HeadSoftmax& softmax, thread const HeadRow& query, thread const HeadRow& key,
                         thread const HeadRow& value, float scale) {
  float product = 0.0f;
  THALWEG_UNROLL
  for (int i = 0; i < kLaneElements; ++i) {
    if (i * 32 < kWidth) product += query.element[i] * key.element[i];
  }
  const float score = simd_sum(product) * scale;
  const float top = max(softmax.largest, score);
  const float correction = precise::exp(softmax.largest - top);
  const float weight = precise::exp(score - top);
  softmax.largest = top;
  softmax.total = softmax.total * correction + weight;
  THALWEG_UNROLL
  for (int i = 0; i < kLaneElements; ++i) {
    if (i * 32 < kWidth) softmax.sum.element[i] = softmax.sum.element[i] * correction + weight * value.element[i];
  }
}

// The softmaxes of all simdgroups in threadgroup memory.
struct StagedSoftmaxes {
  threadgroup float* sums;     // [simdgroups][4][D]
  threadgroup float* largest;  // [simdgroups][4]
  threadgroup float* totals;   // [simdgroups][4]
};

inline StagedSoftmaxes staged_softmaxes(threadgroup float* scratch) {
  StagedSoftmaxes staged;
  staged.sums = scratch;
  staged.largest = staged.sums + kSplitSimdgroups * kSplitHeads * kWidth;
  staged.totals = staged.largest + kSplitSimdgroups * kSplitHeads;
  return staged;
}

inline void stage_softmax(StagedSoftmaxes staged, thread const HeadSoftmax& softmax, int row, uint lane) {
  if (lane == 0) {
    staged.largest[row] = softmax.largest;
    staged.totals[row] = softmax.total;
  }
  THALWEG_UNROLL
  for (int i = 0; i < kLaneElements; ++i) {
    const int index = i * 32 + int(lane);
    if (i * 32 < kWidth && index < kWidth) staged.sums[row * kWidth + index] = softmax.sum.element[i];
  }
}

struct JoinedColumn {
  float sum;
  float largest;
  float total;
};

// A head's softmax over the positions of all simdgroups, in one column of the sum.
inline JoinedColumn join_simdgroups(StagedSoftmaxes staged, int h, int column) {
  JoinedColumn joined;
  joined.largest = no_score();
  joined.sum = 0.0f;
  joined.total = 0.0f;
  for (int s = 0; s < kSplitSimdgroups; ++s) joined.largest = max(joined.largest, staged.largest[s * kSplitHeads + h]);
  for (int s = 0; s < kSplitSimdgroups && joined.largest > no_score(); ++s) {
    const int row = s * kSplitHeads + h;
    const float factor = precise::exp(staged.largest[row] - joined.largest);
    joined.sum += factor * staged.sums[row * kWidth + column];
    joined.total += factor * staged.totals[row];
  }
  return joined;
}

inline int visible_positions(Sequence sequence, int token) {
  return sequence.absent ? 0 : sequence.length - sequence.fresh + token - sequence.begin + 1;
}

[[max_total_threads_per_threadgroup(128)]] kernel void attention_split(
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
    device float* parts [[buffer(10)]],       // [T,HQ,splits,D]
    device float* scales [[buffer(11)]],      // [T,HQ,splits,2]: largest score, sum of weights
    threadgroup float* scratch [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int token = int(group.z);
  const int split = int(group.x);
  const int key_head_index = int(group.y) / p.groups;
  const int ratio = p.heads / p.key_heads;
  const int within = int(group.y) % p.groups * p.rows_heads;  // first head among those of the key head
  const int first_head = key_head_index * ratio + within;
  const int count = min(int(p.rows_heads), ratio - within);
  const Sequence sequence = sequence_of(p.cache, bounds, lengths, slots, pages, token);
  if (sequence.index < 0) return;
  const int visible = visible_positions(sequence, token);
  const int first = split * p.span;
  if (first >= visible) {
    if (kSplit) return;
    for (int i = int(thread_index); i < count * kWidth; i += kSplitSimdgroups * 32) {
      write_output(o, gate, p, token, first_head + i / kWidth, i % kWidth, 0.0f);
    }
    return;
  }
  const int last = min(first + p.span, visible);
  HeadRow queries[kSplitHeads];
  HeadSoftmax softmaxes[kSplitHeads];
  THALWEG_UNROLL
  for (int h = 0; h < kSplitHeads; ++h) {
    softmaxes[h] = no_positions();
    if (h < count) queries[h] = load_query(q, at(p.q, 0, token, first_head + h), lane);
  }
  for (int position = first + int(simdgroup); position < last; position += kSplitSimdgroups) {
    const int64_t key_row = place_of(p.cache, p.cache.keys, slots, pages, sequence.index, position);
    const int64_t value_row = place_of(p.cache, p.cache.values, slots, pages, sequence.index, position);
    if (key_row < 0) continue;
    const HeadRow key = load_cached_row(keys, key_row + key_head_index * p.cache.keys.head, lane);
    const HeadRow value = load_cached_row(values, value_row + key_head_index * p.cache.values.head, lane);
    THALWEG_UNROLL
    for (int h = 0; h < kSplitHeads; ++h) {
      if (h < count) add_position(softmaxes[h], queries[h], key, value, p.scale);
    }
  }
  const StagedSoftmaxes staged = staged_softmaxes(scratch);
  THALWEG_UNROLL
  for (int h = 0; h < kSplitHeads; ++h) stage_softmax(staged, softmaxes[h], int(simdgroup) * kSplitHeads + h, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = int(thread_index); i < count * kWidth; i += kSplitSimdgroups * 32) {
    const int h = i / kWidth;
    const int column = i % kWidth;
    const JoinedColumn joined = join_simdgroups(staged, h, column);
    if (!kSplit) {
      write_output(o, gate, p, token, first_head + h, column, joined.total > 0.0f ? joined.sum / joined.total : 0.0f);
      continue;
    }
    const int64_t part = (int64_t(token) * p.heads + first_head + h) * p.splits + split;
    parts[part * kWidth + column] = joined.sum;
    if (column != 0) continue;
    scales[part * 2] = joined.largest;
    scales[part * 2 + 1] = joined.total;
  }
}

// Threadgroup: a token and head.
[[max_total_threads_per_threadgroup(256)]] kernel void attention_join(
    constant AttentionParameters& p [[buffer(0)]],
    device const float* parts [[buffer(1)]],   // [T,HQ,splits,D]
    device const float* scales [[buffer(2)]],  // [T,HQ,splits,2]
    device const int* bounds [[buffer(3)]],    // [N+1]
    device const int* lengths [[buffer(4)]],   // [N]
    device const int* slots [[buffer(5)]],     // [N]
    device const int* pages [[buffer(6)]],     // [N,P]
    device const void* gate [[buffer(7)]],     // [T,HQ,D]
    device void* o [[buffer(8)]],              // [T,HQ,D]
    uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  const int head = int(group.x);
  const int token = int(group.y);
  const int column = int(thread_index);
  const Sequence sequence = sequence_of(p.cache, bounds, lengths, slots, pages, token);
  if (sequence.index < 0 || column >= kWidth) return;
  const int live = (visible_positions(sequence, token) + p.span - 1) / p.span;
  const int64_t first = (int64_t(token) * p.heads + head) * p.splits;
  float top = no_score();
  for (int split = 0; split < live; ++split) top = max(top, scales[(first + split) * 2]);
  float sum = 0.0f;
  float weights = 0.0f;
  for (int split = 0; split < live && top > no_score(); ++split) {
    const float factor = precise::exp(scales[(first + split) * 2] - top);
    sum += factor * parts[(first + split) * kWidth + column];
    weights += factor * scales[(first + split) * 2 + 1];
  }
  write_output(o, gate, p, token, head, column, weights > 0.0f ? sum / weights : 0.0f);
}
