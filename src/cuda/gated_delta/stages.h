#pragma once

// Host code that the stages of the chunk form share.

#include <limits>
#include <string>

#include "cuda/gated_delta/chunk_table.h"
#include "cuda/gated_delta/gated_delta.h"

namespace thalweg::cu {

// `tokens_of` is any [B,T,...] tensor of the operation.
inline ChunkTable chunk_table(const ConstTensor& cu_seqlens, const ConstTensor& tokens_of, int chunk_size) {
  return {integers(cu_seqlens), cu_seqlens.defined() ? cu_seqlens.dim(0) - 1 : tokens_of.dim(0), tokens_of.dim(1),
          chunk_size};
}

inline std::string fits_grid(std::int64_t blocks) {
  return blocks <= std::numeric_limits<std::int32_t>::max() ? "" : "needs fewer than 2^31 blocks";
}

// Calls body with the chunk size as a constant.
template <class Body>
void with_chunk_size(int chunk_size, Body body) {
  if (chunk_size == 16) {
    body.template operator()<16>();
  } else if (chunk_size == 32) {
    body.template operator()<32>();
  } else {
    body.template operator()<64>();
  }
}

}  // namespace thalweg::cu
