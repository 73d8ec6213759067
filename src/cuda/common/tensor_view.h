#pragma once

// Tensors as kernels see them: an address and the strides, in elements, of all dimensions but the innermost, which is
// contiguous. TensorView has a type, AnyView a dtype that the kernel looks up. Null data: absent.

#include <cstdint>
#include <limits>

#include "cuda/common/elements.h"
#include "thalweg/tensor.h"

namespace thalweg::cu {

// Where the innermost row at the leading indices begins, in elements.
template <int kStrides, class Stride, class... Index>
__device__ inline std::int64_t row_offset(const Stride (&strides)[kStrides], Index... index) {
  static_assert(sizeof...(Index) <= kStrides);
  std::int64_t sum = 0;
  int i = 0;
  ((sum += static_cast<std::int64_t>(index) * strides[i++]), ...);
  return sum;
}

// T is const for a tensor that is only read.
template <class T, int kStrides = 4, class Stride = std::int64_t>
struct TensorView {
  T* data;
  Stride strides[kStrides];

  __device__ bool defined() const { return data != nullptr; }

  template <class... Index>
  __device__ std::int64_t offset(Index... index) const {
    return row_offset(strides, index...);
  }
  template <class... Index>
  __device__ T* row(Index... index) const {
    return data + offset(index...);
  }
};

// A float tensor.
template <int kStrides = 4, class Stride = std::int64_t>
struct AnyView {
  void* data = nullptr;
  Stride strides[kStrides] = {};
  DType dtype = DType::kF32;
  bool fours = false;  // every row begins at a multiple of four elements, so that four can be accessed at once

  __device__ bool defined() const { return data != nullptr; }

  template <class... Index>
  __device__ std::int64_t offset(Index... index) const {
    return row_offset(strides, index...);
  }

  // The element at `offset`, in two steps: a kernel that reads several before it converts the first keeps all reads in
  // flight, which a switch over the dtype around both steps would not.
  __device__ std::uint32_t read(std::int64_t offset) const {
    return dtype == DType::kF32 ? static_cast<const std::uint32_t*>(data)[offset]
                                : static_cast<const std::uint16_t*>(data)[offset];
  }
  __device__ float convert(std::uint32_t bits) const {
    if (dtype == DType::kF16) return to_f32(F16{static_cast<std::uint16_t>(bits)});
    return __uint_as_float(dtype == DType::kBF16 ? bits << 16 : bits);
  }
  __device__ float load(std::int64_t offset) const { return convert(read(offset)); }
  __device__ void store(std::int64_t offset, float x) const {
    with_type(dtype, [&]<class T>(T) { static_cast<T*>(data)[offset] = from_f32<T>(x); });
  }
};

// Of any size, up to rank 5.
using Elements = AnyView<>;
// In fewer bytes, for kernels of a few microseconds: every 64 bytes of parameters that a kernel reads cost 60 ns.
template <int kStrides>
using Compact = AnyView<kStrides, std::int32_t>;
static_assert(sizeof(Elements) == 48 && sizeof(Compact<1>) == 16 && sizeof(Compact<3>) == 24);

// ---- made on the host

// Of a tensor of rank 5 at most.
template <class T, class Pointer>
TensorView<T> view(const BasicTensor<Pointer>& tensor) {
  TensorView<T> result{static_cast<T*>(tensor.data), {}};
  for (int i = 0; i + 1 < tensor.rank && i < 4; ++i) result.strides[i] = tensor.stride(i);
  return result;
}

// Of a tensor of rank kStrides + 1 at most, whose strides fit into Stride.
template <int kStrides, class Stride, class Pointer>
AnyView<kStrides, Stride> any_view(const BasicTensor<Pointer>& tensor) {
  AnyView<kStrides, Stride> result;
  result.data = const_cast<void*>(static_cast<const void*>(tensor.data));
  result.dtype = tensor.dtype;
  result.fours = rows_aligned_to(tensor, static_cast<int>(4 * bytes_of(tensor.dtype, 1)));
  for (int i = 0; i + 1 < tensor.rank && i < kStrides; ++i) result.strides[i] = static_cast<Stride>(tensor.stride(i));
  return result;
}

template <class Pointer>
Elements elements(const BasicTensor<Pointer>& tensor) {
  return any_view<4, std::int64_t>(tensor);
}

// Of a tensor that is_compact().
template <int kStrides, class Pointer>
Compact<kStrides> compact(const BasicTensor<Pointer>& tensor) {
  return any_view<kStrides, std::int32_t>(tensor);
}
template <class Pointer>
bool is_compact(const BasicTensor<Pointer>& tensor) {
  for (int i = 0; i + 1 < tensor.rank; ++i) {
    if (tensor.stride(i) > std::numeric_limits<std::int32_t>::max()) return false;
  }
  return true;
}

}  // namespace thalweg::cu
