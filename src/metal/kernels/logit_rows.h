#pragma once

// What kernels over rows of logits share. A larger logit has a larger key, equal ones have the same. Among all tokens
// of a row the likelier has the larger rank, of equal ones that of lower id; rank 0 is none's.

#include "metal/kernels/parameters_layers.h"

#include "metal/kernels/common.h"

constant constexpr uint kMinusInfinityKey = 0x007FFFFFu;
constant constexpr ulong kNoNumber = ~0ul;  // rank of NaN and +infinity: the largest, so that it is found

inline uint key_of(float logit) {
  const uint bits = as_type<uint>(logit == 0.0f ? 0.0f : logit);  // -0 is equal to 0
  return bits >> 31 != 0u ? ~bits : bits | 0x80000000u;
}
inline float logit_of(uint key) { return as_type<float>(key >> 31 != 0u ? key & 0x7FFFFFFFu : ~key); }
inline ulong rank_of(float logit, int token) {
  if (!(logit < as_type<float>(0x7F800000u))) return kNoNumber;
  return ulong(key_of(logit)) << 32 | ulong(~uint(token));
}
inline uint key_of_rank(ulong rank) { return uint(rank >> 32); }
inline int token_of_rank(ulong rank) { return int(~uint(rank)); }
// Whether the softmax of a row with this largest rank exists.
inline bool has_probabilities(ulong largest) {
  return largest != kNoNumber && key_of_rank(largest) > kMinusInfinityKey;
}

inline ulong shuffled(ulong value, uint lane) {
  const uint high = simd_shuffle(uint(value >> 32), lane);
  const uint low = simd_shuffle(uint(value), lane);
  return ulong(high) << 32 | low;
}
inline ulong simdgroup_max(ulong value, uint lane) {
  for (uint distance = 16; distance > 0; distance /= 2) value = max(value, shuffled(value, lane ^ distance));
  return value;
}
// The sum of the lanes up to this one.
inline ulong simdgroup_prefix(ulong value, uint lane) {
  for (uint distance = 1; distance < 32; distance *= 2) {
    const ulong before = shuffled(value, lane >= distance ? lane - distance : lane);
    if (lane >= distance) value += before;
  }
  return value;
}

// Over all threads of a threadgroup, all of which get the result; scratch [simdgroups].
inline ulong threadgroup_max(ulong value, threadgroup ulong* scratch, uint simdgroup, uint simdgroups, uint lane) {
  value = simdgroup_max(value, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) scratch[simdgroup] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < simdgroups; ++i) value = max(value, scratch[i]);
  return value;
}
inline ulong threadgroup_total(ulong value, threadgroup ulong* scratch, uint simdgroup, uint simdgroups, uint lane) {
  const ulong own = shuffled(simdgroup_prefix(value, lane), 31);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) scratch[simdgroup] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ulong total = 0;
  for (uint i = 0; i < simdgroups; ++i) total += scratch[i];
  return total;
}
