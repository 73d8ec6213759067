#pragma once

#include <cstdint>

namespace thalweg::cu {

// A tensor as a kernel sees it: strides in elements, innermost dimension contiguous. Null data: absent.
template <class T>
struct TensorView {
  T* data;
  std::int64_t strides[4];

  // The innermost row at the leading indices.
  template <class... Index>
  __device__ T* row(Index... index) const {
    static_assert(sizeof...(Index) <= 4);
    std::int64_t offset = 0;
    int i = 0;
    ((offset += static_cast<std::int64_t>(index) * strides[i++]), ...);
    return data + offset;
  }
};

}  // namespace thalweg::cu
