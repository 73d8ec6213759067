// New keys and values into the cache. Threadgroup: a token and 512 of its elements.

#include "metal/kernels/cache_places.h"

[[max_total_threads_per_threadgroup(128)]] kernel void store_kv(constant StoreParameters& p [[buffer(0)]],
                                                                device const void* k [[buffer(1)]],       // [T,HKV,D]
                                                                device const void* v [[buffer(2)]],       // [T,HKV,D]
                                                                device const int* bounds [[buffer(3)]],   // [N+1]
                                                                device const int* lengths [[buffer(4)]],  // [N]
                                                                device const int* slots [[buffer(5)]],    // [N]
                                                                device const int* pages [[buffer(6)]],    // [N,P]
                                                                device void* keys [[buffer(7)]],
                                                                device void* values [[buffer(8)]],
                                                                uint3 group [[threadgroup_position_in_grid]],
                                                                uint thread_index [[thread_index_in_threadgroup]],
                                                                uint lane [[thread_index_in_simdgroup]]) {
  const int token = int(group.y);
  const Sequence sequence = sequence_of(p.cache, bounds, lengths, slots, pages, token);
  if (sequence.index < 0 || sequence.absent) return;
  const int position = sequence.length - sequence.fresh + token - sequence.begin;
  const int64_t key_row = place_of(p.cache, p.cache.keys, slots, pages, sequence.index, position);
  const int64_t value_row = place_of(p.cache, p.cache.values, slots, pages, sequence.index, position);
  if (key_row < 0) return;
  THALWEG_UNROLL
  for (int i = 0; i < kMovedElements; ++i) {
    const int index = (int(group.x) * kMovedElements + i) * kMoveThreads + int(thread_index);
    if (index >= p.heads * kWidth) continue;
    const int head = index / kWidth;
    const int column = index % kWidth;
    store_cached(keys, key_row + head * p.cache.keys.head + column, load(k, kType, at(p.k, 0, token, head) + column),
                 lane);
    store_cached(values, value_row + head * p.cache.values.head + column,
                 load(v, kType, at(p.v, 0, token, head) + column), lane);
  }
}
