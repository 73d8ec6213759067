#pragma once

#include <cstdint>

#include "core/arena.h"
#include "cuda/layers/attention.h"

namespace thalweg::cu {

// The contexts of a batch in a cache of Q8_0 as f16 [N,capacity,HKV,D], for kernels that read each position often.
struct UnpackedCache {
  UnpackedCache(const AttentionArgs& args, Arena& arena);

  void* k;
  void* v;
  std::int32_t* slots;  // [N]: n, -1 if the sequence is absent
};

// Values of both copies.
std::int64_t unpacked_values(const AttentionArgs& args);

// Unpacks all positions of p's sequences; p reads the copies from then on.
void enqueue_unpacked(const UnpackedCache& to, AttentionCall& p, const Stream& stream);

}  // namespace thalweg::cu
