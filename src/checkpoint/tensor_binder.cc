#include "checkpoint/tensor_binder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/float16.h"

namespace thalweg::checkpoint {
namespace {

std::string shape_text(std::initializer_list<std::int64_t> shape) {
  std::string text = "[";
  for (std::int64_t extent : shape) text += (text.size() > 1 ? "," : "") + std::to_string(extent);
  return text + "]";
}

}  // namespace

float element(const ConstTensor& tensor, std::int64_t i) {
  const auto* bytes = static_cast<const char*>(tensor.data) + bytes_of(tensor.dtype, i);
  if (tensor.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, bytes, sizeof(half));
  return tensor.dtype == DType::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
}

void TensorBinder::fail(std::string_view name, std::string_view expected, std::string_view given) const {
  throw Error(config_.path, name, expected, given);
}

ConstTensor TensorBinder::take(const std::string& name, std::initializer_list<std::int64_t> shape, TensorRole role) {
  if (!source_.has(name)) fail(name, "a tensor " + shape_text(shape), "none of that name");
  const ConstTensor tensor = source_.tensor(name);
  weights_.used[name] = {role, layer_, mtp_};
  std::vector<std::int64_t> expected = shape;
  std::vector<std::int64_t> given(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
  std::erase(expected, 1);
  std::erase(given, 1);
  if (given != expected) fail(name, shape_text(shape), to_string(tensor));
  return {tensor.data, tensor.dtype, shape, tensor.device};
}

ConstTensor TensorBinder::matrix(const std::string& name, std::initializer_list<std::int64_t> shape, TensorRole role) {
  const ConstTensor tensor = take(name, shape, role);
  if (tensor.dtype == DType::kI32) fail(name, "weights", to_string(tensor));
  return tensor;
}

ConstTensor TensorBinder::small(const std::string& name, std::initializer_list<std::int64_t> shape) {
  const ConstTensor tensor = take(name, shape, TensorRole::kSmall);
  if (!is_float(tensor.dtype)) fail(name, "F32, F16 or BF16", to_string(tensor));
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    const float value = element(tensor, i);
    if (!std::isfinite(value)) {
      fail(name, "finite values", std::to_string(value) + " at index " + std::to_string(i));
    }
  }
  return tensor;
}

ConstTensor TensorBinder::deinterleave_gates(const ConstTensor& ba) {
  const std::int64_t ratio = config_.value_heads / config_.key_heads;
  const auto bytes = static_cast<std::size_t>(bytes_of(ba.dtype, ba.dim(1)));
  auto* memory = static_cast<char*>(allocate(bytes * static_cast<std::size_t>(ba.dim(0))));
  char* to = memory;
  for (std::int64_t gate = 0; gate < 2; ++gate) {
    for (std::int64_t h = 0; h < config_.value_heads; ++h, to += bytes) {
      std::memcpy(to, ba.row((h / ratio * 2 + gate) * ratio + h % ratio), bytes);
    }
  }
  return {memory, ba.dtype, {ba.dim(0), ba.dim(1)}, kCpu};
}

ConstTensor TensorBinder::stack(const std::vector<ConstTensor>& matrices) {
  const ConstTensor& first = matrices.front();
  const auto count = static_cast<std::int64_t>(matrices.size());
  const std::int64_t bytes = bytes_of(first.dtype, first.size());
  ConstTensor whole(first.data, first.dtype, {count, first.dim(0), first.dim(1)}, first.device);
  const auto address = [&](std::int64_t e) {
    return reinterpret_cast<std::uintptr_t>(matrices[static_cast<std::size_t>(e)].data);
  };
  // At equal distances, and close enough that only an expert's own tensors lie between two.
  const std::int64_t distance = count > 1 ? static_cast<std::int64_t>(address(1) - address(0)) : bytes;
  const DTypeInfo info = dtype_info(first.dtype);
  bool regular = distance >= bytes && distance <= 4 * bytes && distance % info.block_bytes == 0;
  for (std::int64_t e = 1; regular && e < count; ++e) {
    regular = static_cast<std::int64_t>(address(e) - address(e - 1)) == distance;
  }
  if (regular) {
    whole.strides[0] = distance / info.block_bytes * info.block_size;
    return whole;
  }
  if (copies_ == Copies::kLeftOut) return whole;
  auto* memory = static_cast<char*>(allocate(static_cast<std::size_t>(bytes * count)));
  for (std::int64_t e = 0; e < count; ++e) {
    std::memcpy(memory + e * bytes, matrices[static_cast<std::size_t>(e)].data, static_cast<std::size_t>(bytes));
  }
  whole.data = memory;
  return whole;
}

}  // namespace thalweg::checkpoint
