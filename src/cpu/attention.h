#pragma once

// What the kernels of attention share.

#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/cache_places.h"
#include "core/sequences.h"
#include "cpu/nn_vector.h"
#include "cpu/vector.h"
#include "thalweg/nn.h"

namespace thalweg::cpu {

inline float score_scale(const AttentionArgs& args) {
  return args.scale ? *args.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.q.dim(2))));
}

// `count` positions of one sequence and key head in a cache, from position `first` on.
struct CacheBlock {
  const ConstTensor& cache;
  const CachePlaces& places;
  std::int64_t sequence;
  std::int64_t head;
  std::int64_t first;
  std::int64_t count;

  const void* row(std::int64_t i) const {
    const CachePlaces::Place place = places.place(sequence, first + i);
    return cache.row(place.slot, place.row, head);
  }
};

// Cache rows are far apart in memory, so that the hardware does not prefetch them.
inline void prefetch(const CacheBlock& block) {
  constexpr std::int64_t kLine = 64;
  const std::int64_t bytes = bytes_of(block.cache.dtype, block.cache.dim(3));
  for (std::int64_t i = 0; i < block.count; ++i) {
    const auto* row = static_cast<const char*>(block.row(i));
    for (std::int64_t offset = 0; offset < bytes; offset += kLine) hwy::Prefetch(row + offset);
  }
}

// Keys begin..end-1 of one sequence and key head. The first token attends to the keys below `visible`, each further
// token to one more.
struct Keys {
  const CachePlaces& places;
  std::int64_t sequence;
  std::int64_t head;
  std::int64_t begin;
  std::int64_t end;
  std::int64_t visible;
};

// o = sums / total, times the gate; zeros for an absent sequence, which alone has no weights.
inline void finish_row(const AttentionArgs& args, std::int64_t token, std::int64_t head, float total, float* sums,
                       float* gate) {
  const std::int64_t width = args.q.dim(2);
  if (total == 0.0F) {
    std::fill_n(sums, width, 0.0F);
  } else {
    vector_ops().scale(1.0F / total, sums, width, sums);
  }
  if (args.gate.defined() && total != 0.0F) {
    vector_ops().load(args.gate.dtype, args.gate.row(token, head), width, gate);
    nn_vector_ops().sigmoid_multiply(gate, width, sums);
  }
  vector_ops().store(args.o.dtype, sums, width, args.o.row(token, head));
}

// attention_bf16.cc
std::string bf16_attention_reason(const AttentionArgs& args, const Stream& stream);
std::size_t bf16_attention_workspace(const AttentionArgs& args, const Stream& stream);
void run_bf16_attention(const AttentionArgs& args, Workspace workspace, const Stream& stream);

}  // namespace thalweg::cpu
