#include "cases/memory.h"

#include <algorithm>
#include <cstring>

#include "core/float16.h"

namespace thalweg::cases {
namespace {

constexpr std::size_t kGuard = 256;
constexpr unsigned char kGuardByte = 0xA5;
constexpr unsigned char kUnwritten = 0xFF;  // NaN in every float format

std::uint64_t checksum_of(const unsigned char* bytes, std::size_t count) {
  std::uint64_t sum = count;
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, 8);
    sum = (sum ^ word) * 0x9E3779B97F4A7C15U;
  }
  for (; i < count; ++i) sum = (sum ^ bytes[i]) * 0x9E3779B97F4A7C15U;
  return sum;
}

}  // namespace

double read_element(DType dtype, const void* row, std::int64_t i) {
  switch (dtype) {
    case DType::kF16:
      return f16_to_f32(static_cast<const std::uint16_t*>(row)[i]);
    case DType::kBF16:
      return bf16_to_f32(static_cast<const std::uint16_t*>(row)[i]);
    case DType::kI32:
      return static_cast<const std::int32_t*>(row)[i];
    default:
      return static_cast<const float*>(row)[i];
  }
}

void write_element(DType dtype, void* row, std::int64_t i, double value) {
  switch (dtype) {
    case DType::kF16:
      static_cast<std::uint16_t*>(row)[i] = f32_to_f16(static_cast<float>(value));
      break;
    case DType::kBF16:
      static_cast<std::uint16_t*>(row)[i] = f32_to_bf16(static_cast<float>(value));
      break;
    case DType::kI32:
      static_cast<std::int32_t*>(row)[i] = static_cast<std::int32_t>(value);
      break;
    default:
      static_cast<float*>(row)[i] = static_cast<float>(value);
      break;
  }
}

void for_each_row(const Tensor& tensor, const std::function<void(void*, std::int64_t, std::int64_t)>& row) {
  if (tensor.size() == 0) return;
  const std::int64_t width = tensor.dim(tensor.rank - 1);
  for (std::int64_t r = 0; r < tensor.size() / width; ++r) {
    std::int64_t offset = 0;
    std::int64_t rest = r;
    for (int axis = tensor.rank - 2; axis >= 0; --axis) {
      offset += rest % tensor.dim(axis) * tensor.stride(axis);
      rest /= tensor.dim(axis);
    }
    row(static_cast<char*>(tensor.data) + bytes_of(tensor.dtype, offset), r * width, width);
  }
}

Memory::Buffer& Memory::allocate(DType dtype, const std::vector<std::int64_t>& shape, Role role) {
  Buffer& buffer = buffers_.emplace_back();
  buffer.role = role;
  Tensor& view = buffer.view;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    const auto a = static_cast<std::size_t>(axis);
    view.shape[a] = shape[a];
    view.strides[a] = stride;
    std::int64_t parent = shape[a];
    if (layout_ == Layout::kStrided && view.rank > 1) {
      if (axis == view.rank - 1) parent += is_block_format(dtype) ? dtype_info(dtype).block_size : 8;
      if (axis == view.rank - 2) parent += 1;
    }
    stride *= parent;
  }
  buffer.bytes = static_cast<std::size_t>(bytes_of(dtype, stride));
  buffer.storage = std::make_unique_for_overwrite<unsigned char[]>(buffer.bytes + 2 * kGuard + 64);
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.storage.get() + kGuard);
  buffer.begin = buffer.storage.get() + kGuard + (64 - address % 64) % 64;
  std::memset(buffer.begin - kGuard, kGuardByte, kGuard);
  std::memset(buffer.begin, kUnwritten, buffer.bytes);
  std::memset(buffer.begin + buffer.bytes, kGuardByte, kGuard);
  view.data = buffer.begin;
  return buffer;
}

void Memory::remember(Buffer& buffer) {
  if (buffer.role == Role::kInput) buffer.checksum = checksum_of(buffer.begin, buffer.bytes);
  if (buffer.role == Role::kInOut) buffer.original.assign(buffer.begin, buffer.begin + buffer.bytes);
}

Tensor Memory::input(DType dtype, const std::vector<std::int64_t>& shape, const Generator& generator) {
  Buffer& buffer = allocate(dtype, shape, Role::kInput);
  for_each_row(buffer.view, [&](void* row, std::int64_t, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) write_element(dtype, row, i, generator());
  });
  remember(buffer);
  return buffer.view;
}

Tensor Memory::input_bytes(DType dtype, const std::vector<std::int64_t>& shape,
                           const std::function<void(void*, std::int64_t)>& row) {
  Buffer& buffer = allocate(dtype, shape, Role::kInput);
  for_each_row(buffer.view, [&](void* bytes, std::int64_t, std::int64_t count) { row(bytes, count); });
  remember(buffer);
  return buffer.view;
}

Tensor Memory::output(DType dtype, const std::vector<std::int64_t>& shape) {
  return allocate(dtype, shape, Role::kOutput).view;
}

Tensor Memory::in_out(DType dtype, const std::vector<std::int64_t>& shape, const Generator& generator) {
  return also_output(input(dtype, shape, generator));
}

Tensor Memory::also_output(const ConstTensor& input) {
  for (Buffer& buffer : buffers_) {
    if (buffer.view.data != input.data) continue;
    buffer.role = Role::kInOut;
    remember(buffer);
    return buffer.view;
  }
  return {};
}

void Memory::refresh(const ConstTensor& input) {
  for (Buffer& buffer : buffers_) {
    if (buffer.view.data == input.data) remember(buffer);
  }
}

std::uint64_t Memory::checksum() const {
  std::uint64_t sum = 0;
  for (const Buffer& buffer : buffers_) sum = sum * 31 + checksum_of(buffer.begin, buffer.bytes);
  return sum;
}

void Memory::reset() {
  for (Buffer& buffer : buffers_) {
    if (buffer.role == Role::kOutput) std::memset(buffer.begin, kUnwritten, buffer.bytes);
    if (buffer.role == Role::kInOut) std::copy(buffer.original.begin(), buffer.original.end(), buffer.begin);
  }
}

void Memory::upload(const Stream& stream) {
  for (Buffer& buffer : buffers_) {
    const std::size_t bytes = buffer.bytes + 2 * kGuard;
    if (buffer.copy.bytes() < bytes) buffer.copy = DeviceMemory(stream.device, bytes);
    copy_to_device(stream, buffer.copy.data(), buffer.begin - kGuard, bytes);
  }
}

void Memory::download(const Stream& stream) {
  for (Buffer& buffer : buffers_) {
    copy_to_host(stream, buffer.begin - kGuard, buffer.copy.data(), buffer.bytes + 2 * kGuard);
  }
}

void* Memory::address_on_device(const void* address) const {
  const auto* byte = static_cast<const unsigned char*>(address);
  for (const Buffer& buffer : buffers_) {
    if (byte < buffer.begin || byte > buffer.begin + buffer.bytes || buffer.copy.data() == nullptr) continue;
    return static_cast<unsigned char*>(buffer.copy.data()) + kGuard + (byte - buffer.begin);
  }
  return nullptr;
}

bool Memory::untouched() const {
  return check().empty() && std::all_of(buffers_.begin(), buffers_.end(), [](const Buffer& buffer) {
           if (buffer.role == Role::kInput) return true;
           for (std::size_t i = 0; i < buffer.bytes; ++i) {
             const unsigned char before = buffer.role == Role::kOutput ? kUnwritten : buffer.original[i];
             if (buffer.begin[i] != before) return false;
           }
           return true;
         });
}

std::string Memory::check() const {
  for (std::size_t index = 0; index < buffers_.size(); ++index) {
    const Buffer& buffer = buffers_[index];
    const std::string name = "buffer " + std::to_string(index) + " (" + to_string(buffer.view) + ")";
    for (std::size_t i = 0; i < kGuard; ++i) {
      if ((buffer.begin - kGuard)[i] != kGuardByte) return "bytes before " + name + " overwritten";
      if (buffer.begin[buffer.bytes + i] != kGuardByte) return "bytes after " + name + " overwritten";
    }
    if (buffer.role == Role::kInput) {
      if (checksum_of(buffer.begin, buffer.bytes) != buffer.checksum) return "input " + name + " overwritten";
      continue;
    }
    // Bytes between the rows of a strided view do not belong to it.
    std::vector<bool> ours(buffer.bytes, false);
    for_each_row(buffer.view, [&](void* row, std::int64_t, std::int64_t count) {
      const auto first = static_cast<std::size_t>(static_cast<unsigned char*>(row) - buffer.begin);
      const auto bytes = static_cast<std::size_t>(bytes_of(buffer.view.dtype, count));
      for (std::size_t i = 0; i < bytes; ++i) ours[first + i] = true;
    });
    for (std::size_t i = 0; i < buffer.bytes; ++i) {
      const unsigned char before = buffer.role == Role::kOutput ? kUnwritten : buffer.original[i];
      if (!ours[i] && buffer.begin[i] != before) return "bytes between the rows of " + name + " overwritten";
    }
  }
  return {};
}

}  // namespace thalweg::cases
