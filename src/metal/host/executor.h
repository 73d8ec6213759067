#pragma once

// Runs Metal kernels on the host, thread by thread, and checks what a GPU would not tell: accesses out of bounds, reads
// of threadgroup memory that was not written, barriers and simdgroup operations that not all threads reach, data races
// between barriers, threadgroups and launches. For tests and `thalweg verify`, not for speed: one thread of the
// machine.

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "metal/host/compiled_program.h"
#include "metal/launch.h"

namespace thalweg::metal {

// What launches did, added up.
struct Counts {
  std::uint64_t launches = 0;
  std::uint64_t dependencies = 0;  // launches that had to wait for one before them
  std::uint64_t threadgroups = 0;
  std::uint64_t device_bytes_read = 0;
  std::uint64_t device_bytes_written = 0;
  std::uint64_t barriers = 0;           // of threadgroups
  std::uint64_t matrix_operations = 0;  // 8 x 8 multiply-accumulates
  std::uint64_t threadgroup_bytes = 0;  // most threadgroup memory of a launch

  Counts& operator+=(const Counts& other);
};

struct KernelCounts {
  std::string kernel;
  Counts counts;
};

// Counts since the last reset, by kernel in the order of their first launch.
std::vector<KernelCounts> executor_counts();
Counts executor_total();
void reset_executor_counts();

// Runs launches at once. Throws thalweg::Error at the first thing that is wrong, with kernel, threadgroup and thread.
class ExecutorEncoder final : public Encoder {
 public:
  explicit ExecutorEncoder(std::string_view operation);
  void launch(const Launch& launch) override;

 private:
  std::unique_lock<std::mutex> lock_;  // one run at a time
  std::string operation_;
};

// Programs that launches may name, beside those that were added before.
void add_programs(const CompiledProgram* const* programs, std::size_t count);

}  // namespace thalweg::metal
