#include "metal/launch.h"

namespace thalweg::metal {

Buffer buffer_of(const ConstTensor& tensor) {
  if (tensor.size() == 0) return {};
  std::int64_t last = 0;
  for (int i = 0; i + 1 < tensor.rank; ++i) last += (tensor.dim(i) - 1) * tensor.stride(i);
  return {tensor.data, static_cast<std::size_t>(bytes_of(tensor.dtype, last + tensor.dim(tensor.rank - 1)))};
}

}  // namespace thalweg::metal
