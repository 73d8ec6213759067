#include "thalweg/tensor.h"

namespace thalweg {

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
