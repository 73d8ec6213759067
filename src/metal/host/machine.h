#pragma once

// The executor's machine: the threads of the threadgroup that is running, where they wait, and the checks of what they
// read and write.

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "metal/host/compiled_program.h"
#include "metal/host/executor.h"
#include "metal/host/fibers.h"
#include "metal/host/memory_checks.h"

namespace thalweg::metal {

inline constexpr std::uint32_t kLanes = 32;

struct Thread {
  enum class State { kReady, kAtBarrier, kInSimdgroup, kFinished };
  State state = State::kReady;
  int line = 0;  // of the barrier or simdgroup operation that it waits at
  Fiber fiber;
  ThreadPosition position{};
  Accessor accessor;
  std::uint32_t matrix_access = 0;  // the last argument of thalweg_matrix_access()
};

// A simdgroup operation: all lanes arrive, then continue. Values are double-buffered, because a lane can be one
// operation ahead.
struct Simdgroup {
  std::uint32_t arrived = 0;
  int line = 0;
  std::uint32_t meeting = 0;
  std::array<std::array<std::uint32_t, kLanes>, 2> words{};
  struct Matrices {
    std::array<float, 64> a, b, c, result;
  };
  std::array<Matrices, 2> matrices;
};

// Runs launches, one threadgroup at a time: its threads are fibers, of which one runs at a time.
class Machine {
 public:
  void add(const CompiledProgram* program) { programs_.push_back(program); }
  void begin_run();
  void launch(const std::string& operation, const Launch& launch);

  std::vector<KernelCounts> counts;
  std::uint64_t command_buffers = 0;

  // Called by kernels.
  void access(const void* address, std::size_t bytes, bool write, bool atomic);
  void barrier(unsigned flags, int line);
  Simdgroup& meet(int line);  // returns when all lanes have arrived
  void simdgroup_barrier(unsigned flags, int line);
  void multiply(const float* a, const float* b, const float* c, float* result, int line);
  Thread& current() { return *current_; }
  Simdgroup& current_simdgroup() { return simdgroups_[current_->position.simdgroup_index_in_threadgroup]; }
  [[noreturn]] void fault(std::string what);
  const void* stacks_begin() const { return stacks_.begin(0); }

 private:
  const CompiledKernel& find(const std::string& operation, std::string_view name,
                             const CompiledProgram*& program) const;
  void prepare(const Launch& launch, const CompiledKernel& kernel, const CompiledProgram& program);
  void run_threadgroup(std::uint32_t x, std::uint32_t y, std::uint32_t z);
  std::string describe_deadlock() const;
  static void body(void* thread);

  FiberStacks stacks_;
  MemoryChecks checks_;
  std::vector<const CompiledProgram*> programs_;
  std::vector<Thread> threads_ = std::vector<Thread>(FiberStacks::kMaxThreads);
  std::vector<Simdgroup> simdgroups_ = std::vector<Simdgroup>(FiberStacks::kMaxThreads / kLanes);
  Thread* current_ = nullptr;
  const CompiledKernel* kernel_ = nullptr;
  Memory memory_{};
  std::vector<char> parameters_;
  std::uint32_t num_threads_ = 0;
  std::uint32_t finished_ = 0;
  std::uint32_t at_barrier_ = 0;
  unsigned barrier_flags_ = 0;
  int barrier_line_ = 0;
  Accessor now_;  // the fields that all threads of the threadgroup share
  Counts running_;
  std::string fault_;
};

// A singleton, because compiled kernels call free functions.
inline Machine& machine() {
  static Machine instance;
  return instance;
}

inline std::mutex& machine_mutex() {
  static std::mutex instance;
  return instance;
}

}  // namespace thalweg::metal
