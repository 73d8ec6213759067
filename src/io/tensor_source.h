#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "thalweg/tensor.h"

namespace thalweg::io {

// Named tensors of a model, in any format of file. Views point into memory that the source owns and are valid as long
// as the source. All functions may be called from several threads.
class TensorSource {
 public:
  TensorSource() = default;
  virtual ~TensorSource() = default;
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;

  virtual bool has(std::string_view name) const = 0;

  // Row-major, innermost dimension last, contiguous; a scalar is [1]. Throws Error that names file and tensor if the
  // name is unknown or its type is not one of DType.
  virtual ConstTensor tensor(std::string_view name) const = 0;

  // In the order of the file.
  virtual std::vector<std::string> names() const = 0;

  // Of all tensors together.
  virtual std::uint64_t bytes() const = 0;

  // Throws Error if something was read that a file lost while in use: what was read since it was opened may be zeros.
  virtual void require_intact() const = 0;

  // Reads everything once, so that later reads find it in memory. `progress`, if given, is called with the fraction
  // done, and with 1 at the end.
  virtual void prefetch(std::function<void(double done)> progress) const = 0;
};

// A contiguous view of host memory, of 1 to kMaxRank dimensions.
inline ConstTensor contiguous_view(const void* data, DType dtype, const std::vector<std::int64_t>& shape) {
  ConstTensor view;
  view.data = data;
  view.dtype = dtype;
  view.device = kCpu;
  view.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    view.shape[i] = shape[i];
    view.strides[i] = stride;
    stride *= shape[i] > 0 ? shape[i] : 1;
  }
  return view;
}

}  // namespace thalweg::io
