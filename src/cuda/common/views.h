#pragma once

#include <cstdint>
#include <limits>

#include "cuda/common/elements.h"
#include "cuda/common/tensor_view.h"
#include "thalweg/tensor.h"

namespace thalweg::cu {

// What a kernel gets of a tensor of at most rank 5; T is const for one that is only read.
template <class T, class Pointer>
TensorView<T> view(const BasicTensor<Pointer>& tensor) {
  TensorView<T> result{static_cast<T*>(tensor.data), {}};
  for (int i = 0; i + 1 < tensor.rank && i < 4; ++i) result.strides[i] = tensor.stride(i);
  return result;
}

template <int kStrides, class Stride, class Pointer>
BasicElements<kStrides, Stride> basic_elements(const BasicTensor<Pointer>& tensor) {
  BasicElements<kStrides, Stride> result;
  result.data = const_cast<void*>(static_cast<const void*>(tensor.data));
  result.dtype = tensor.dtype;
  const auto four = static_cast<std::uintptr_t>(4 * bytes_of(tensor.dtype, 1));
  result.fours = reinterpret_cast<std::uintptr_t>(tensor.data) % four == 0;
  for (int i = 0; i + 1 < tensor.rank && i < kStrides; ++i) {
    result.strides[i] = static_cast<Stride>(tensor.stride(i));
    result.fours &= tensor.dim(i) <= 1 || tensor.stride(i) % 4 == 0;
  }
  return result;
}

// The same for a kernel that looks at the dtype itself.
template <class Pointer>
Elements elements(const BasicTensor<Pointer>& tensor) {
  return basic_elements<4, std::int64_t>(tensor);
}

// The same in few bytes, of a tensor of rank kStrides + 1 that is_compact().
template <int kStrides, class Pointer>
Compact<kStrides> compact(const BasicTensor<Pointer>& tensor) {
  return basic_elements<kStrides, std::int32_t>(tensor);
}
template <class Pointer>
bool is_compact(const BasicTensor<Pointer>& tensor) {
  for (int i = 0; i + 1 < tensor.rank; ++i) {
    if (tensor.stride(i) > std::numeric_limits<std::int32_t>::max()) return false;
  }
  return true;
}

}  // namespace thalweg::cu
