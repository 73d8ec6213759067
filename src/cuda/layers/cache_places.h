#pragma once

// Where the positions of sequences lie in a cache of keys or values, on the device: cu_seqlens, lengths, slots and
// pages, whose values host code has not checked.

#include <bit>
#include <cstdint>

#include "cuda/common/tensor_view.h"

namespace thalweg::cu {

// A cache [slots,S,HKV,D] or [pages,S,HKV,D]; strides in elements.
struct CacheView {
  void* data = nullptr;
  std::int64_t strides[3] = {};
};

struct CacheTable {
  const std::int32_t* cu_seqlens = nullptr;
  const std::int32_t* lengths = nullptr;
  const std::int32_t* slots = nullptr;  // null: sequence n has slot n
  const std::int32_t* pages = nullptr;  // null: slots
  std::int64_t pages_stride = 0;
  std::int64_t tokens = 0;     // T
  std::int64_t sequences = 0;  // N
  std::int64_t num_slots = 0;  // or pages
  std::int64_t capacity = 0;   // positions of a sequence
  std::uint32_t rows = 1;      // S
  int shift = -1;              // log2 S if it is a power of two
};

struct CachedSequence {
  std::int64_t begin = 0;  // first new token
  int fresh = 0;           // new tokens
  int length = 0;          // positions in the cache; 0 if absent
  std::int64_t slot = 0;
  const std::int32_t* pages = nullptr;
  bool absent = false;
  bool valid = false;  // false: a value is out of range, and kernels skip the sequence
};

__device__ inline CachedSequence find_cached(const CacheTable& table, std::int64_t n) {
  CachedSequence sequence;
  const std::int64_t begin = table.cu_seqlens[n];
  const std::int64_t end = table.cu_seqlens[n + 1];
  const std::int32_t length = table.lengths[n];  // with the other reads, though an absent sequence's is ignored
  sequence.begin = begin;
  sequence.fresh = static_cast<int>(end - begin);
  sequence.valid = begin >= 0 && begin <= end && end <= table.tokens;
  if (table.pages != nullptr) {
    sequence.pages = table.pages + n * table.pages_stride;
    sequence.slot = sequence.pages[0];
  } else {
    sequence.slot = table.slots != nullptr ? table.slots[n] : n;
  }
  sequence.absent = sequence.slot == -1;
  if (sequence.absent) return sequence;
  sequence.length = length;
  sequence.valid = sequence.valid && sequence.slot >= 0 && sequence.slot < table.num_slots &&
                   sequence.length >= sequence.fresh && sequence.length <= table.capacity;
  return sequence;
}

// Where a position's row begins, for head 0; -1 if its page is out of range.
__device__ inline std::int64_t cache_offset(const CacheTable& table, const CachedSequence& sequence,
                                            const CacheView& cache, int position) {
  if (sequence.pages == nullptr) return sequence.slot * cache.strides[0] + position * cache.strides[1];
  const auto at = static_cast<std::uint32_t>(position);
  const std::uint32_t i = table.shift >= 0 ? at >> table.shift : at / table.rows;
  const std::int64_t page = sequence.pages[i];
  if (page < 0 || page >= table.num_slots) return -1;
  return page * cache.strides[0] + static_cast<std::int64_t>(at - i * table.rows) * cache.strides[1];
}

// The sequence that has token t, if cu_seqlens increases: a binary search that stays in its bounds whatever it holds.
__device__ inline std::int64_t sequence_of_token(const CacheTable& table, std::int64_t t) {
  std::int64_t low = 0;
  std::int64_t high = table.sequences;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (table.cu_seqlens[middle] <= t) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// ---- made on the host, of the arguments of attention or store_kv

template <class Pointer>
CacheView cache_view(const BasicTensor<Pointer>& cache) {
  CacheView result;
  result.data = const_cast<void*>(static_cast<const void*>(cache.data));
  for (int i = 0; i < 3; ++i) result.strides[i] = cache.stride(i);
  return result;
}

template <class Args>
CacheTable cache_table(const Args& args, std::int64_t tokens) {
  const auto values = [](const ConstTensor& tensor) { return static_cast<const std::int32_t*>(tensor.data); };
  CacheTable table;
  table.cu_seqlens = values(args.cu_seqlens);
  table.lengths = values(args.lengths);
  if (args.slots.defined()) table.slots = values(args.slots);
  table.tokens = tokens;
  table.sequences = args.lengths.dim(0);
  table.num_slots = args.k_cache.dim(0);
  table.capacity = args.k_cache.dim(1);
  table.rows = static_cast<std::uint32_t>(args.k_cache.dim(1));
  if (std::has_single_bit(table.rows)) table.shift = std::countr_zero(table.rows);
  if (args.pages.defined()) {
    table.pages = values(args.pages);
    table.pages_stride = args.pages.stride(0);
    table.capacity *= args.pages.dim(1);
  }
  return table;
}

// Positions are counted in 32 bits.
template <class Args>
bool positions_fit(const Args& args) {
  const std::int64_t pages = args.pages.defined() ? args.pages.dim(1) : 1;
  return args.k_cache.dim(1) < (std::int64_t{1} << 30) / (pages > 0 ? pages : 1);
}

}  // namespace thalweg::cu
