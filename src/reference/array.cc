#include "reference/array.h"

#include <numeric>
#include <utility>

#include "core/float16.h"
#include "reference/quant.h"

namespace thalweg::reference {
namespace {

// One innermost row of `count` elements.
void read_row(DType dtype, const void* row, std::int64_t count, double* values) {
  for (std::int64_t i = 0; i < count; ++i) {
    switch (dtype) {
      case DType::kF32:
        values[i] = static_cast<const float*>(row)[i];
        break;
      case DType::kF16:
        values[i] = f16_to_f32(static_cast<const std::uint16_t*>(row)[i]);
        break;
      case DType::kBF16:
        values[i] = bf16_to_f32(static_cast<const std::uint16_t*>(row)[i]);
        break;
      case DType::kI32:
        values[i] = static_cast<const std::int32_t*>(row)[i];
        break;
      default:
        values[i] = unpack_one(dtype, row, i);
        break;
    }
  }
}

}  // namespace

Array::Array(std::vector<std::int64_t> shape, double fill) : shape_(std::move(shape)) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape_) count *= extent;
  values.assign(static_cast<std::size_t>(count), fill);
}

Array read(const ConstTensor& tensor) {
  if (!tensor.defined()) return {};
  Array result(std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.begin() + tensor.rank));
  if (result.size() == 0) return result;
  const std::int64_t width = tensor.dim(tensor.rank - 1);
  for (std::int64_t row = 0; row < result.size() / width; ++row) {
    std::int64_t offset = 0;
    std::int64_t rest = row;
    for (int axis = tensor.rank - 2; axis >= 0; --axis) {
      offset += rest % tensor.dim(axis) * tensor.stride(axis);
      rest /= tensor.dim(axis);
    }
    read_row(tensor.dtype, static_cast<const char*>(tensor.data) + bytes_of(tensor.dtype, offset), width,
             result.values.data() + row * width);
  }
  return result;
}

double rounded(DType dtype, double value, Precision precision) {
  if (precision == Precision::kExact) return value;
  const auto single = static_cast<float>(value);
  if (dtype == DType::kBF16) return round_to_bf16(single);
  if (dtype == DType::kF16) return round_to_f16(single);
  return single;
}

void round_all(Array& array, DType dtype, Precision precision) {
  for (double& value : array.values) value = rounded(dtype, value, precision);
}

}  // namespace thalweg::reference
