#pragma once

// Where the new tokens of a batch and the positions of its sequences lie. The host has seen none of these values: what
// is out of range belongs to no sequence.

#include "metal/kernels/parameters_layers.h"

#include "metal/kernels/common.h"
#include "metal/kernels/formats.h"

struct Sequence {
  int index;   // -1: the token belongs to none
  int begin;   // its first new token
  int fresh;   // number of new tokens
  int length;  // positions in the cache, the new ones included
  bool absent;
};

// `slots` [N] or `pages` [N,P]; by kIndexed and kPaged.
inline bool is_absent(constant CacheParameters& cache, device const int* slots, device const int* pages, int n) {
  if (kPaged) return pages[n * cache.pages_row] == -1;
  return kIndexed && slots[n] == -1;
}

inline Sequence sequence_at(constant CacheParameters& cache, device const int* bounds, device const int* lengths,
                            device const int* slots, device const int* pages, int n) {
  Sequence sequence;
  sequence.index = n;
  sequence.begin = bounds[n];
  sequence.fresh = bounds[n + 1] - sequence.begin;
  sequence.length = lengths[n];
  sequence.absent = is_absent(cache, slots, pages, n);
  const bool inside = sequence.begin >= 0 && sequence.fresh >= 0 && bounds[n + 1] <= cache.tokens;
  const int64_t capacity = kPaged ? int64_t(cache.page_columns) * cache.rows : int64_t(cache.rows);
  if (!inside) {
    sequence.index = -1;
    sequence.fresh = 0;
  } else if (!sequence.absent && (sequence.length < sequence.fresh || sequence.length > capacity)) {
    sequence.index = -1;
  } else if (!kPaged && kIndexed && !sequence.absent && (slots[n] < 0 || slots[n] >= cache.places)) {
    sequence.index = -1;
  }
  return sequence;
}

// The sequence of a new token.
inline Sequence sequence_of(constant CacheParameters& cache, device const int* bounds, device const int* lengths,
                            device const int* slots, device const int* pages, int token) {
  for (int n = 0; n < cache.sequences; ++n) {
    if (token >= bounds[n] && token < bounds[n + 1]) return sequence_at(cache, bounds, lengths, slots, pages, n);
  }
  Sequence none;
  none.index = -1;
  none.begin = none.fresh = none.length = 0;
  none.absent = false;
  return none;
}

// The offset of a position's row of the cache; -1: its page does not exist.
inline int64_t place_of(constant CacheParameters& cache, constant View& view, device const int* slots,
                        device const int* pages, int n, int position) {
  if (!kPaged) return (kIndexed ? slots[n] : n) * view.row + position * view.token;
  const int page = pages[n * cache.pages_row + position / cache.rows];
  return page >= 0 && page < cache.places ? page * view.row + position % cache.rows * view.token : int64_t(-1);
}

// An element of a cache.
inline float load_cached(device const void* data, int64_t element) {
  if (kCacheType != kQ8_0) return load(data, kCacheType, element);
  device const uchar* block = static_cast<device const uchar*>(data) + element / 32 * 34;
  return half_at(block) * float(as_type<int8_t>(block[2 + element % 32]));
}

// Stores an element. Of a cache of Q8_0 the lanes of a simdgroup have the elements of a block.
inline void store_cached(device void* data, int64_t element, float value, uint lane) {
  if (kCacheType != kQ8_0) return store(data, kCacheType, element, value);
  device uchar* block = static_cast<device uchar*>(data) + element / 32 * 34;
  const float largest = simd_max(fabs(value));
  float scale = float(half(min(precise::divide(largest, 127.0f), 65504.0f)));
  if (scale == 0.0f && largest > 0.0f) scale = 5.9604645e-8f;  // the smallest f16
  const float inverse = scale == 0.0f ? 0.0f : precise::divide(1.0f, scale);
  const int code = int(clamp(rint(value * inverse), -127.0f, 127.0f));
  const int next = simd_shuffle_xor(code, 1);
  if (lane % 2 != 0) return;
  reinterpret_cast<device ushort*>(block)[1 + lane / 2] = ushort((code & 255) | (next & 255) << 8);
  if (lane == 0) reinterpret_cast<device half*>(block)[0] = half(scale);
}
