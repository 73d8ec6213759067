#pragma once

// Runs Metal kernels on the host, thread by thread on one CPU thread, and detects what a GPU would not report: accesses
// out of bounds, uninitialized threadgroup memory, barriers and simdgroup operations that not all threads reach, data
// races between barriers, threadgroups and launches. For tests and `thalweg verify`.

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "metal/host/compiled_program.h"
#include "metal/launch.h"

namespace thalweg::metal {

// Counters, summed over launches.
struct Counts {
  std::uint64_t launches = 0;
  std::uint64_t dependencies = 0;  // launches with after_previous
  std::uint64_t threadgroups = 0;
  std::uint64_t device_bytes_read = 0;
  std::uint64_t device_bytes_written = 0;
  std::uint64_t barriers = 0;           // of threadgroups
  std::uint64_t matrix_operations = 0;  // 8 x 8 multiply-accumulates
  std::uint64_t threadgroup_bytes = 0;  // largest of all launches

  Counts& operator+=(const Counts& other);
};

struct KernelCounts {
  std::string kernel;
  Counts counts;
};

// Counts since the last reset, by kernel in the order of their first launch.
std::vector<KernelCounts> executor_counts();
Counts executor_total();
// Encoders since the last reset: on a device, each is a command buffer with one compute encoder.
std::uint64_t executor_command_buffers();
void reset_executor_counts();

// Runs each launch immediately. Throws thalweg::Error at the first fault, with kernel, threadgroup and thread.
class ExecutorEncoder final : public Encoder {
 public:
  explicit ExecutorEncoder(std::string_view operation);
  void launch(const Launch& launch) override;

 private:
  std::unique_lock<std::mutex> lock_;  // one run at a time
  std::string operation_;
};

// Adds programs whose kernels launches may name.
void add_programs(const CompiledProgram* const* programs, std::size_t count);

}  // namespace thalweg::metal
