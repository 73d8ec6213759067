#include "thalweg/tensor.h"

#include <algorithm>

#include "core/exported.h"
#include "thalweg/error.h"

namespace thalweg {
namespace {

template <class Pointer>
void check_range(std::string_view view, const BasicTensor<Pointer>& tensor, int dim, std::int64_t first,
                 std::int64_t count) {
  const bool present = dim >= 0 && dim < tensor.rank;
  const std::int64_t extent = present ? tensor.dim(dim) : 0;
  if (present && first >= 0 && count >= 0 && first <= extent && count <= extent - first) return;
  throw Error(
      view, "range",
      "one within 0.." + std::to_string(extent) + " of dimension " + std::to_string(dim) + " of " + to_string(tensor),
      std::to_string(first) + ".." + std::to_string(first + count));
}

// Moves a view on by `elements`, and reduces its stated alignment. Without memory the offset itself is stated, so that
// a plan made without memory is the plan of the run.
template <class Pointer>
void advance(BasicTensor<Pointer>& tensor, std::int64_t elements) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  const std::int64_t bytes = bytes_of(tensor.dtype, elements);
  if (bytes == 0) return;
  const auto alignment = static_cast<int>(std::min<std::int64_t>(bytes & -bytes, kMaxAlignment));
  if (tensor.alignment > 0) {
    tensor.alignment = std::min(tensor.alignment, alignment);
  } else if (tensor.data == nullptr && alignment < kMaxAlignment) {
    tensor.alignment = alignment;
  }
  if (tensor.data != nullptr) tensor.data = static_cast<Byte*>(tensor.data) + bytes;
}

// The strides under which `to` (shape and rank) visits the elements of `from` in order; false if there are none. Each
// run of dimensions of `from` that are contiguous with each other takes dimensions of `to` until its size is reached.
template <class Pointer>
bool fill_strides(const BasicTensor<Pointer>& from, BasicTensor<Pointer>& to) {
  int next = to.rank - 1;
  std::int64_t run_stride = from.stride(from.rank - 1);
  std::int64_t run_size = 1;
  std::int64_t taken = 1;
  const auto take = [&](int dimension) {  // returns the next one
    to.strides[static_cast<std::size_t>(dimension)] = taken * run_stride;
    taken *= to.dim(dimension);
    return dimension - 1;
  };
  for (int i = from.rank - 1; i >= 0; --i) {
    run_size *= from.dim(i);
    if (i > 0 && (from.dim(i - 1) == 1 || from.stride(i - 1) == run_size * run_stride)) continue;
    while (next >= 0 && taken < run_size) next = take(next);
    if (taken != run_size) return false;
    if (i == 0) break;
    run_stride = from.stride(i - 1);
    run_size = 1;
    taken = 1;
  }
  while (next >= 0) next = take(next);
  return true;
}

}  // namespace

template <class Pointer>
BasicTensor<Pointer> reshape(const BasicTensor<Pointer>& tensor, std::initializer_list<std::int64_t> shape) {
  BasicTensor<Pointer> view(tensor.data, tensor.dtype, shape, tensor.device);
  view.alignment = tensor.alignment;
  if (shape.size() > kMaxRank || !tensor.defined() || view.size() != tensor.size()) {
    throw Error("reshape", "shape", "at most 5 dimensions and the elements of " + to_string(tensor), to_string(view));
  }
  if (tensor.size() > 0 && !fill_strides(tensor, view)) {
    throw Error("reshape", "shape", "one that needs no copy of " + to_string(tensor), to_string(view));
  }
  return view;
}

template <class Pointer>
BasicTensor<Pointer> narrow(const BasicTensor<Pointer>& tensor, int dim, std::int64_t first, std::int64_t count) {
  check_range("narrow", tensor, dim, first, count);
  const int block = dim + 1 == tensor.rank ? dtype_info(tensor.dtype).block_size : 1;
  if (first % block != 0 || count % block != 0) {
    throw Error("narrow", "range", "whole blocks of " + std::to_string(block),
                std::to_string(first) + ".." + std::to_string(first + count));
  }
  BasicTensor<Pointer> view = tensor;
  view.shape[static_cast<std::size_t>(dim)] = count;
  advance(view, first * tensor.stride(dim));
  return view;
}

template <class Pointer>
BasicTensor<Pointer> select(const BasicTensor<Pointer>& tensor, std::int64_t index) {
  if (tensor.rank < 2) throw Error("select", "tensor", "at least 2 dimensions", to_string(tensor));
  check_range("select", tensor, 0, index, 1);
  BasicTensor<Pointer> view = tensor;
  --view.rank;
  for (int i = 0; i < kMaxRank; ++i) {
    const auto to = static_cast<std::size_t>(i);
    view.shape[to] = i + 1 < tensor.rank ? tensor.dim(i + 1) : 0;
    view.strides[to] = i + 1 < tensor.rank ? tensor.stride(i + 1) : 0;
  }
  advance(view, index * tensor.stride(0));
  return view;
}

template <class Pointer>
BasicTensor<Pointer> head_range(const BasicTensor<Pointer>& tensor, std::int64_t first, std::int64_t heads,
                                std::int64_t width) {
  if (tensor.rank >= kMaxRank) throw Error("head_range", "tensor", "at most 4 dimensions", to_string(tensor));
  if (heads < 0 || width < 0 || width % dtype_info(tensor.dtype).block_size != 0) {
    throw Error("head_range", "width", "whole blocks, and no negative numbers",
                std::to_string(heads) + " heads of " + std::to_string(width));
  }
  BasicTensor<Pointer> view = column_range(tensor, first, heads * width);
  const auto last = static_cast<std::size_t>(view.rank++);
  view.shape[last - 1] = heads;
  view.strides[last - 1] = width;
  view.shape[last] = width;
  view.strides[last] = 1;
  return view;
}

template THALWEG_EXPORTED Tensor reshape(const Tensor&, std::initializer_list<std::int64_t>);
template THALWEG_EXPORTED ConstTensor reshape(const ConstTensor&, std::initializer_list<std::int64_t>);
template THALWEG_EXPORTED Tensor narrow(const Tensor&, int, std::int64_t, std::int64_t);
template THALWEG_EXPORTED ConstTensor narrow(const ConstTensor&, int, std::int64_t, std::int64_t);
template THALWEG_EXPORTED Tensor select(const Tensor&, std::int64_t);
template THALWEG_EXPORTED ConstTensor select(const ConstTensor&, std::int64_t);
template THALWEG_EXPORTED Tensor head_range(const Tensor&, std::int64_t, std::int64_t, std::int64_t);
template THALWEG_EXPORTED ConstTensor head_range(const ConstTensor&, std::int64_t, std::int64_t, std::int64_t);

std::string to_string(const ConstTensor& tensor) {
  if (!tensor.defined()) return "nothing";
  const auto list = [&](const auto& values) {
    std::string text = "[";
    for (int i = 0; i < tensor.rank; ++i) {
      if (i > 0) text += ',';
      text += std::to_string(values[static_cast<std::size_t>(i)]);
    }
    return text + "]";
  };
  std::string text = std::string(dtype_name(tensor.dtype)) + " " + list(tensor.shape);
  std::uint64_t expected = 1;  // wraps for extents that no memory has; messages about those end up here too
  bool contiguous = true;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    if (tensor.dim(i) > 1) contiguous &= static_cast<std::uint64_t>(tensor.stride(i)) == expected;
    expected *= tensor.dim(i) > 0 ? static_cast<std::uint64_t>(tensor.dim(i)) : 1;
  }
  if (!contiguous) text += " with strides " + list(tensor.strides);
  if (tensor.device.type != DeviceType::kCpu) {
    text += " on " + std::string(device_type_name(tensor.device.type)) + ":" + std::to_string(tensor.device.index);
  }
  return text;
}

}  // namespace thalweg
