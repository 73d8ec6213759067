#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "thalweg/api.h"
#include "thalweg/device.h"
#include "thalweg/dtype.h"
#include "thalweg/error.h"

THALWEG_API_BEGIN
namespace thalweg {

// Views are values: threads may use copies of a view freely, and share a view that no thread changes.

inline constexpr int kMaxRank = 5;

// No kernel needs a larger alignment of tensors, in bytes.
inline constexpr int kMaxAlignment = 16;

// A view of memory that somebody else owns: nothing is copied or freed. Strides count elements and may describe a
// range of a larger tensor; the innermost dimension is always contiguous. For block formats strides still count
// weights and the innermost shape is a multiple of the block size. A default-constructed view is "absent".
template <class Pointer>
struct BasicTensor {
  Pointer data = nullptr;
  DType dtype = DType::kF32;
  Device device;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};
  // The alignment of `data` in bytes: a power of two, or 0 if it is not stated. Kernels are chosen by it
  // (address_alignment() below), so a caller that plans without memory and then runs on memory that is aligned to less
  // than kMaxAlignment must state it here.
  int alignment = 0;

  BasicTensor() = default;

  // A contiguous view of memory on `device_`, which has no default: no view is on the host by accident. Throws
  // Error for more than kMaxRank dimensions.
  BasicTensor(Pointer data_, DType dtype_, std::initializer_list<std::int64_t> shape_, Device device_)
      : data(data_), dtype(dtype_), device(device_) {
    if (shape_.size() > shape.size()) {
      throw Error("Tensor", "shape", "at most " + std::to_string(kMaxRank) + " dimensions",
                  std::to_string(shape_.size()));
    }
    for (std::int64_t extent : shape_) shape[static_cast<std::size_t>(rank++)] = extent;
    std::int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      strides[static_cast<std::size_t>(i)] = stride;
      stride *= dim(i) > 0 ? dim(i) : 1;
    }
  }

  // A writable view can be read.
  template <class Other>
  requires(std::is_const_v<std::remove_pointer_t<Pointer>> && !std::is_const_v<std::remove_pointer_t<Other>>)
      BasicTensor(const BasicTensor<Other>& other)  // NOLINT(google-explicit-constructor)
      : data(other.data),
        dtype(other.dtype),
        device(other.device),
        rank(other.rank),
        shape(other.shape),
        strides(other.strides),
        alignment(other.alignment) {}

  // Whether an optional argument was given. Shapes count, not the pointer: workspace_size() needs no memory.
  bool defined() const { return rank > 0; }

  std::int64_t dim(int i) const { return shape[static_cast<std::size_t>(i)]; }
  std::int64_t stride(int i) const { return strides[static_cast<std::size_t>(i)]; }

  std::int64_t size() const {
    if (rank == 0) return 0;
    std::int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= dim(i);
    return count;
  }

  // The innermost rows' byte address: element (index..., 0).
  template <class... Index>
  Pointer row(Index... index) const {
    static_assert(sizeof...(Index) <= kMaxRank);
    std::int64_t offset = 0;
    int i = 0;
    ((offset += static_cast<std::int64_t>(index) * stride(i++)), ...);
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
    return static_cast<Byte*>(data) + bytes_of(dtype, offset);
  }
};

using Tensor = BasicTensor<void*>;
using ConstTensor = BasicTensor<const void*>;

// The alignment that kernels may count on, 1 to kMaxAlignment: as stated; else that of the address; else, without
// memory, kMaxAlignment.
template <class Pointer>
int address_alignment(const BasicTensor<Pointer>& tensor) {
  if (tensor.alignment > 0) return tensor.alignment < kMaxAlignment ? tensor.alignment : kMaxAlignment;
  const auto bits = reinterpret_cast<std::uintptr_t>(tensor.data) | std::uintptr_t{kMaxAlignment};
  return static_cast<int>(bits & (~bits + 1));
}

// Whether every innermost row begins at a multiple of `bytes`, a power of two up to kMaxAlignment.
template <class Pointer>
bool rows_aligned_to(const BasicTensor<Pointer>& tensor, int bytes) {
  bool aligned = address_alignment(tensor) % bytes == 0;
  for (int i = 0; i + 1 < tensor.rank; ++i) {
    aligned &= tensor.dim(i) <= 1 || bytes_of(tensor.dtype, tensor.stride(i)) % bytes == 0;
  }
  return aligned;
}

// Views of a view. They keep dtype, device and, where it can be kept, the stated alignment: a view that begins at an
// offset states the largest power of two that divides both. Without memory (`data` is null) only shapes, strides and
// alignment are derived. They throw Error for ranges that leave the tensor, for columns that are not whole blocks, and
// for ranks above kMaxRank.

// The same elements in the same order under another shape, without a copy. Throws Error if the sizes differ or the
// strides do not allow it: dimensions that are merged must be contiguous with each other.
template <class Pointer>
BasicTensor<Pointer> reshape(const BasicTensor<Pointer>& tensor, std::initializer_list<std::int64_t> shape);

// Indices [first, first + count) of dimension `dim`: [..,N,..] becomes [..,count,..]. In the innermost dimension block
// formats need multiples of the block size.
template <class Pointer>
BasicTensor<Pointer> narrow(const BasicTensor<Pointer>& tensor, int dim, std::int64_t first, std::int64_t count);

// Element `index` of the outermost dimension, which is dropped: [N,...] becomes [...]. The rank is at least 2.
template <class Pointer>
BasicTensor<Pointer> select(const BasicTensor<Pointer>& tensor, std::int64_t index);

// Columns [first, first + count), narrow() of the innermost dimension: [...,C] becomes [...,count].
template <class Pointer>
BasicTensor<Pointer> column_range(const BasicTensor<Pointer>& tensor, std::int64_t first, std::int64_t count) {
  return narrow(tensor, tensor.rank - 1, first, count);
}

// `heads` heads of `width` columns each, from column `first` on: [...,C] becomes [...,heads,width].
template <class Pointer>
BasicTensor<Pointer> head_range(const BasicTensor<Pointer>& tensor, std::int64_t first, std::int64_t heads,
                                std::int64_t width);

// "BF16 [1,64,4,128]", with strides added when the view is not contiguous.
std::string to_string(const ConstTensor& tensor);

}  // namespace thalweg
THALWEG_API_END
