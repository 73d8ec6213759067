#pragma once

// Shared by the launches of the layers' operations.

#include "metal/kernels/parameters_layers.h"
#include "metal/launch.h"
#include "thalweg/nn.h"

namespace thalweg::metal {

// Strides of [T,D] or [T,H,D], all zero for an absent tensor.
inline View rows_view(const ConstTensor& tensor) {
  return {0, tensor.stride(0), tensor.rank == 3 ? tensor.stride(1) : 0};
}

// Strides of a cache [slots,S,HKV,D].
inline View cache_view(const ConstTensor& cache) { return {cache.stride(0), cache.stride(1), cache.stride(2)}; }

// Places of N sequences with T new tokens in a cache.
inline CacheParameters cache_parameters(const ConstTensor& lengths, std::int64_t tokens, const ConstTensor& pages,
                                        const ConstTensor& keys, const ConstTensor& values) {
  CacheParameters p{};
  p.sequences = static_cast<std::int32_t>(lengths.dim(0));
  p.tokens = static_cast<std::int32_t>(tokens);
  p.places = static_cast<std::int32_t>(keys.dim(0));
  p.rows = static_cast<std::int32_t>(keys.dim(1));
  p.page_columns = static_cast<std::int32_t>(pages.dim(1));
  p.pages_row = pages.stride(0);
  p.keys = cache_view(keys);
  p.values = cache_view(values);
  return p;
}

// `count` elements at `data` as a kernel's buffer.
template <class T>
Buffer buffer_of(const T* data, std::int64_t count) {
  return {data, static_cast<std::size_t>(count) * sizeof(T)};
}

// A launch of kMoveThreads threads, each of which moves kMovedElements columns of `columns`.
inline Launch columns_launch(std::string_view kernel, std::int64_t columns) {
  Launch launch;
  launch.kernel = kernel;
  launch.threads = kMoveThreads;
  launch.grid = {ceil_div(columns, std::int64_t{kMoveThreads} * kMovedElements), 1, 1};
  return launch;
}

// Launches that operations share; `p` must live until the launch has been encoded. With state_indices, whose pool has
// p.slots, the rows are p.tokens of each sequence, and those of a sequence without a valid index are left as they are.
Launch gated_norm_launch(const GatedRmsNormArgs& args, const ConstTensor& state_indices, NormParameters& p);
Launch conv_update_launch(const CausalConv1dUpdateArgs& args, ConvParameters& p);

}  // namespace thalweg::metal
