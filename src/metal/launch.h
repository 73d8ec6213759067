#pragma once

// A launch of a kernel, which a device or the tests' executor encodes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "thalweg/tensor.h"

namespace thalweg::metal {

inline constexpr int kMaxLaunchBuffers = 24;

// A kernel's buffer argument. A kernel does not access an absent one: its function constants say which are present.
struct Buffer {
  const void* data = nullptr;
  std::size_t bytes = 0;
};

// The memory from a view's first to its last element.
Buffer buffer_of(const ConstTensor& tensor);

// The value of a kernel's constant int name [[function_constant(..)]].
struct FunctionConstantValue {
  std::string_view name;
  std::int32_t value = 0;
};

// ceil(a / b), as a number of threadgroups.
inline std::uint32_t ceil_div(std::int64_t a, std::int64_t b) { return static_cast<std::uint32_t>((a + b - 1) / b); }

struct Launch {
  std::string_view operation = {};  // that it belongs to, where an encoder has launches of several
  std::string_view kernel = {};
  std::array<FunctionConstantValue, 32> constants{};
  int num_constants = 0;
  // buffer(0): copied when the launch is encoded.
  const void* parameters = nullptr;
  std::size_t parameter_bytes = 0;
  // buffer(1) and on.
  std::array<Buffer, kMaxLaunchBuffers> buffers{};
  int num_buffers = 0;
  std::size_t threadgroup_bytes = 0;  // threadgroup(0), at most 32 KB
  // Number of threadgroups; or the address to which an earlier launch writes it.
  std::array<std::uint32_t, 3> grid{1, 1, 1};
  const std::uint32_t* indirect_grid = nullptr;
  std::uint32_t threads = 32;  // of a threadgroup, a multiple of 32
  // Whether all earlier launches of the run must have finished before it starts.
  bool after_previous = false;

  template <class Value>
  Launch& constant(std::string_view name, Value value) {
    constants[static_cast<std::size_t>(num_constants++)] = {name, static_cast<std::int32_t>(value)};
    return *this;
  }
  Launch& add(const ConstTensor& tensor) { return add(buffer_of(tensor)); }
  Launch& add(const void* data, std::size_t bytes) { return add(Buffer{data, bytes}); }
  Launch& add(const Buffer& buffer) {
    buffers[static_cast<std::size_t>(num_buffers++)] = buffer;
    return *this;
  }
  template <class Parameters>
  Launch& set(const Parameters& values) {
    parameters = &values;
    parameter_bytes = sizeof(values);
    return *this;
  }
};

// Encodes the launches of one run in order. They have finished when the stream has been synchronized.
class Encoder {
 public:
  Encoder() = default;
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;
  virtual ~Encoder() = default;

  // A launch without threadgroups does nothing.
  virtual void launch(const Launch& launch) = 0;
};

// An encoder of the stream's device, or of the executor.
std::unique_ptr<Encoder> make_encoder(std::string_view operation, const Stream& stream);

}  // namespace thalweg::metal
