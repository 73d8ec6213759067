#pragma once

#include <cstdint>

#include "cuda/device/elements.h"
#include "cuda/device/tensor_view.h"
#include "thalweg/tensor.h"

namespace thalweg::cu {

// What a kernel gets of a tensor of at most rank 5; T is const for one that is only read.
template <class T, class Pointer>
TensorView<T> view(const BasicTensor<Pointer>& tensor) {
  TensorView<T> result{static_cast<T*>(tensor.data), {}};
  for (int i = 0; i + 1 < tensor.rank && i < 4; ++i) result.strides[i] = tensor.stride(i);
  return result;
}

// The same for a kernel that looks at the dtype itself.
template <class Pointer>
Elements elements(const BasicTensor<Pointer>& tensor) {
  Elements result;
  result.data = const_cast<void*>(static_cast<const void*>(tensor.data));
  result.dtype = tensor.dtype;
  const auto four = static_cast<std::uintptr_t>(4 * bytes_of(tensor.dtype, 1));
  result.fours = reinterpret_cast<std::uintptr_t>(tensor.data) % four == 0;
  for (int i = 0; i + 1 < tensor.rank && i < 4; ++i) {
    result.strides[i] = tensor.stride(i);
    result.fours &= tensor.dim(i) <= 1 || tensor.stride(i) % 4 == 0;
  }
  return result;
}

}  // namespace thalweg::cu
