#pragma once

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

}  // namespace thalweg::cu
