#pragma once

// One launch of a kernel, as the operations describe it and as a device (or the executor of tests) runs it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "thalweg/tensor.h"

namespace thalweg::metal {

inline constexpr int kMaxLaunchBuffers = 24;

// Memory behind a kernel's buffer argument. Absent: a kernel that was told so by its constants never looks at it.
struct Buffer {
  const void* data = nullptr;
  std::size_t bytes = 0;
};

// The bytes that a view reaches.
Buffer buffer_of(const ConstTensor& tensor);

// What a kernel is specialised for: constant int name [[function_constant(..)]].
struct FunctionConstantValue {
  std::string_view name;
  std::int32_t value = 0;
};

struct Launch {
  std::string_view kernel;
  std::array<FunctionConstantValue, 32> constants{};
  int num_constants = 0;
  // buffer(0): copied when the launch is encoded.
  const void* parameters = nullptr;
  std::size_t parameter_bytes = 0;
  // buffer(1) and on.
  std::array<Buffer, kMaxLaunchBuffers> buffers{};
  int num_buffers = 0;
  std::size_t threadgroup_bytes = 0;  // threadgroup(0), at most 32 KB
  // Threadgroups; or where a launch before this one wrote their numbers.
  std::array<std::uint32_t, 3> grid{1, 1, 1};
  const std::uint32_t* indirect_grid = nullptr;
  std::uint32_t threads = 32;  // of a threadgroup, a multiple of 32
  // Whether it needs what launches since the last such one wrote: they must have finished before it starts.
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

// Takes the launches of one run, in order. They are known to have run when the stream has been waited for.
class Encoder {
 public:
  Encoder() = default;
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;
  virtual ~Encoder() = default;

  // Launches without threadgroups are left out.
  virtual void launch(const Launch& launch) = 0;
};

// Of the device behind the stream, or of the executor.
std::unique_ptr<Encoder> make_encoder(std::string_view operation, const Stream& stream);

}  // namespace thalweg::metal
