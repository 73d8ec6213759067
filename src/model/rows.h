#pragma once

// Moves between tensors that no operation of the library makes: sums of residuals, rows into the key and value cache,
// sorting of interleaved projections. On the host; rows are spread over the stream's threads.

#include <cstdint>
#include <span>

#include "model/config.h"
#include "thalweg/device.h"
#include "thalweg/tensor.h"

namespace thalweg::model {

// h += y, both [T,D] f32 and contiguous.
void add_rows(const Tensor& h, const ConstTensor& y, const Stream& stream);

// Where a new token's key and value go.
struct CachePlace {
  std::int64_t slot;
  std::int64_t position;
};

// cache[place] = rows: rows [T,H,D] f32, cache [slots,S,H,D] f32 or f16.
void store_in_cache(const ConstTensor& rows, std::span<const CachePlace> places, const Tensor& cache,
                    const Stream& stream);

// qkv [T,C] as q | k | v and z [T,HV*V] over all heads, from rows [T,C+HV*V] that hold q | k | v | z of each key head
// in turn. f32.
void split_key_heads(const ModelConfig& config, const ConstTensor& rows, const Tensor& qkv, const Tensor& z,
                     const Stream& stream);

}  // namespace thalweg::model
