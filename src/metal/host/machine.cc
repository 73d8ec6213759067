#include "metal/host/machine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "metal/host/kernel_runtime.h"
#include "thalweg/error.h"

// Linker symbols around the program's own constants, which kernels may read.
extern "C" char __executable_start;  // NOLINT(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" char _end;                // NOLINT(bugprone-reserved-identifier,readability-identifier-naming)

namespace thalweg::metal {
namespace {

// The value of a function constant that the launch did not set.
constexpr std::int32_t kUnsetConstant = -1000000007;

}  // namespace

void Machine::fault(std::string what) {
  fault_ = std::move(what);
  current_->fiber.finish();
}

void Machine::begin_run() {
  checks_.reset();
  now_ = {};
  now_.interval = now_.launch_begin = 1;  // 0 means no access
}

const CompiledKernel& Machine::find(const std::string& operation, std::string_view name,
                                    const CompiledProgram*& program) const {
  for (const CompiledProgram* candidate : programs_) {
    for (const CompiledKernel& kernel : candidate->kernels) {
      if (kernel.name == nullptr) break;
      if (name != kernel.name) continue;
      program = candidate;
      return kernel;
    }
  }
  throw Error(operation, "kernel", "a kernel of the programs", name);
}

void Machine::prepare(const Launch& launch, const CompiledKernel& kernel, const CompiledProgram& program) {
  for (const CompiledConstant& constant : program.constants) {
    if (constant.value != nullptr) *constant.value = kUnsetConstant;
  }
  for (int i = 0; i < launch.num_constants; ++i) {
    const FunctionConstantValue& given = launch.constants[static_cast<std::size_t>(i)];
    const auto* end = program.constants + kMaxConstants;
    const auto* found = std::find_if(program.constants, end, [&](const CompiledConstant& constant) {
      return constant.value != nullptr && given.name == constant.name;
    });
    if (found == end) throw Error(launch.kernel, "function constant", "one that the program has", given.name);
    *found->value = given.value;
  }
  const auto* bytes = static_cast<const char*>(launch.parameters);
  parameters_.assign(bytes, bytes + launch.parameter_bytes);
  memory_ = {};
  memory_.buffer[0] = parameters_.data();
  memory_.scratch[0] = checks_.threadgroup_memory();
  std::vector<std::pair<const void*, std::size_t>> buffers = {{nullptr, 0}};
  for (int i = 0; i < launch.num_buffers; ++i) {
    const Buffer& buffer = launch.buffers[static_cast<std::size_t>(i)];
    memory_.buffer[i + 1] = const_cast<void*>(buffer.data);
    buffers.emplace_back(buffer.data, buffer.data == nullptr ? 0 : buffer.bytes);
  }
  checks_.set_buffers(std::move(buffers), kernel.writable, parameters_.data(), parameters_.size());
  checks_.set_threadgroup_bytes(launch.threadgroup_bytes);
  num_threads_ = launch.threads;
  kernel_ = &kernel;
}

void Machine::launch(const std::string& operation, const Launch& launch) {
  const CompiledProgram* program = nullptr;
  const CompiledKernel& kernel = find(operation, launch.kernel, program);
  const auto reject = [&](const std::string& what) {
    throw Error(operation, "kernel " + std::string(launch.kernel), "a launch that Metal allows", what);
  };
  if (launch.threads % kLanes != 0 || launch.threads > kernel.max_threads || launch.threads == 0) {
    reject(std::to_string(launch.threads) + " threads");
  }
  if (launch.threadgroup_bytes > kMaxThreadgroupBytes || launch.threadgroup_bytes % 16 != 0) {
    reject(std::to_string(launch.threadgroup_bytes) + " bytes of threadgroup memory");
  }
  if (kernel.buffers >> (launch.num_buffers + 1) != 0 || launch.parameter_bytes > 4096) reject("missing buffers");
  if (launch.indirect_grid != nullptr && !launch.after_previous) reject("a grid that may not have been written yet");
  prepare(launch, kernel, *program);
  if (launch.after_previous) now_.launch_begin = now_.interval + 1;
  std::array<std::uint32_t, 3> grid = launch.grid;
  if (launch.indirect_grid != nullptr) std::copy_n(launch.indirect_grid, 3, grid.begin());
  running_ = {};
  running_.launches = 1;
  running_.dependencies = launch.after_previous ? 1 : 0;
  running_.threadgroup_bytes = launch.threadgroup_bytes;
  for (std::uint32_t i = 0; i < num_threads_; ++i) {
    ThreadPosition& position = threads_[i].position;
    std::copy_n(grid.begin(), 3, position.threadgroups_per_grid);
    position.thread_index_in_threadgroup = i;
    position.simdgroup_index_in_threadgroup = i / kLanes;
    position.simdgroups_per_threadgroup = num_threads_ / kLanes;
    position.thread_index_in_simdgroup = i % kLanes;
  }
  for (std::uint32_t z = 0; z < grid[2]; ++z) {
    for (std::uint32_t y = 0; y < grid[1]; ++y) {
      for (std::uint32_t x = 0; x < grid[0]; ++x) {
        run_threadgroup(x, y, z);
        if (fault_.empty()) continue;
        const std::string thread =
            current_ == nullptr ? "" : ", thread " + std::to_string(current_->position.thread_index_in_threadgroup);
        const std::string what = std::exchange(fault_, {});
        throw Error(operation,
                    "kernel " + std::string(launch.kernel) + ", threadgroup [" + std::to_string(x) + "," +
                        std::to_string(y) + "," + std::to_string(z) + "]" + thread,
                    "no fault", what);
      }
    }
  }
  const auto known =
      std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.kernel == launch.kernel; });
  if (known == counts.end()) {
    counts.push_back({std::string(launch.kernel), running_});
  } else {
    known->counts += running_;
  }
}

// Not instrumented: AddressSanitizer would place the two locals on a separate stack.
[[gnu::no_sanitize_address]] void Machine::body(void* thread) {
  auto* self = static_cast<Thread*>(thread);
  Machine& m = machine();
  // Copies on the fiber's own stack, where reads are not checked.
  const Memory memory = m.memory_;
  const ThreadPosition position = self->position;
  m.kernel_->call(memory, position);
  self->state = Thread::State::kFinished;
  ++m.finished_;
  self->fiber.finish();
}

void Machine::run_threadgroup(std::uint32_t x, std::uint32_t y, std::uint32_t z) {
  ++running_.threadgroups;
  ++now_.interval;
  now_.threadgroup_begin = now_.threadgroup_interval = now_.device_interval = now_.interval;
  checks_.poison_threadgroup_memory();
  finished_ = at_barrier_ = 0;
  for (std::uint32_t i = 0; i < num_threads_; ++i) {
    Thread& thread = threads_[i];
    const std::array<std::uint32_t, 3> group = {x, y, z};
    std::copy_n(group.begin(), 3, thread.position.threadgroup_position_in_grid);
    thread.state = Thread::State::kReady;
    thread.accessor = {};
    thread.matrix_access = 0;
    thread.fiber.start(stacks_, i, &Machine::body, &thread);
    simdgroups_[i / kLanes].arrived = 0;
  }
  while (finished_ < num_threads_) {
    bool progress = false;
    for (std::uint32_t i = 0; i < num_threads_; ++i) {
      Thread& thread = threads_[i];
      if (thread.state != Thread::State::kReady) continue;
      progress = true;
      current_ = &thread;
      thread.fiber.resume();
      if (!fault_.empty()) return;
      // Lanes that met continue before other simdgroups run: their data is still in the cache.
      if (i % kLanes == kLanes - 1 && threads_[i - i % kLanes].state == Thread::State::kReady) i -= i % kLanes + 1;
    }
    if (progress || finished_ == num_threads_) continue;
    current_ = nullptr;
    fault_ = describe_deadlock();
    return;
  }
}

// Describes a deadlock: some threads wait for others that have finished or wait elsewhere.
std::string Machine::describe_deadlock() const {
  std::string text;
  for (std::uint32_t i = 0; i < num_threads_; ++i) {
    const Thread& thread = threads_[i];
    if (thread.state == Thread::State::kFinished) continue;
    text = thread.state == Thread::State::kAtBarrier ? "a barrier" : "a simdgroup operation";
    text +=
        " that not all threads reach: thread " + std::to_string(i) + " waits at line " + std::to_string(thread.line);
    break;
  }
  return text + ", " + std::to_string(finished_) + " of " + std::to_string(num_threads_) + " threads have finished";
}

void Machine::access(const void* address, std::size_t bytes, bool write, bool atomic) {
  const auto* byte = static_cast<const char*>(address);
  const auto* stacks = reinterpret_cast<const char*>(stacks_.begin(0));
  if (byte >= stacks && byte < stacks + FiberStacks::kMaxThreads * FiberStacks::kStackBytes) return;
  if (!write && byte >= &__executable_start && byte < &_end) {
    if (bytes == sizeof(kUnsetConstant) && std::memcmp(byte, &kUnsetConstant, bytes) == 0) {
      fault("read of a function constant that the launch did not set");
    }
    return;
  }
  Accessor& by = current_->accessor;
  const std::uint32_t index = current_->position.thread_index_in_threadgroup;
  by.thread = index / kLanes * kLanes + (index + current_->matrix_access) % kLanes;
  by.interval = now_.interval;
  by.threadgroup_interval = now_.threadgroup_interval;
  by.device_interval = now_.device_interval;
  by.threadgroup_begin = now_.threadgroup_begin;
  by.launch_begin = now_.launch_begin;
  AddressSpace space = AddressSpace::kDevice;
  std::string problem = checks_.check(address, bytes, write, atomic, by, space);
  if (!problem.empty()) fault(std::move(problem));
  if (space != AddressSpace::kDevice) return;
  (write ? running_.device_bytes_written : running_.device_bytes_read) += bytes;
}

void Machine::barrier(unsigned flags, int line) {
  if (at_barrier_ > 0 && (line != barrier_line_ || flags != barrier_flags_)) {
    fault("a barrier that not all threads reach: it waits at line " + std::to_string(line) + ", others at line " +
          std::to_string(barrier_line_));
  }
  barrier_line_ = line;
  barrier_flags_ = flags;
  Thread& self = *current_;
  self.line = line;
  ++self.accessor.simd_epoch;
  if (++at_barrier_ < num_threads_) {
    self.state = Thread::State::kAtBarrier;
    self.fiber.yield();
    return;
  }
  at_barrier_ = 0;
  ++running_.barriers;
  ++now_.interval;
  if ((flags & kMemThreadgroup) != 0) now_.threadgroup_interval = now_.interval;
  if ((flags & kMemDevice) != 0) now_.device_interval = now_.interval;
  for (std::uint32_t i = 0; i < num_threads_; ++i) threads_[i].state = Thread::State::kReady;
}

Simdgroup& Machine::meet(int line) {
  Thread& self = *current_;
  Simdgroup& group = current_simdgroup();
  if (group.arrived > 0 && line != group.line) {
    fault("a simdgroup operation that not all lanes reach: at line " + std::to_string(line) + ", others at line " +
          std::to_string(group.line));
  }
  group.line = line;
  self.line = line;
  if (++group.arrived < kLanes) {
    self.state = Thread::State::kInSimdgroup;
    self.fiber.yield();
    return group;
  }
  group.arrived = 0;
  ++group.meeting;
  Thread* first = &threads_[self.position.simdgroup_index_in_threadgroup * kLanes];
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) first[lane].state = Thread::State::kReady;
  return group;
}

void Machine::simdgroup_barrier(unsigned flags, int line) {
  meet(line);
  if (flags != 0) ++current_->accessor.simd_epoch;
}

void Machine::multiply(const float* a, const float* b, const float* c, float* result, int line) {
  Simdgroup& group = current_simdgroup();
  Simdgroup::Matrices& m = group.matrices[group.meeting % 2];
  const std::size_t element = 2 * current_->position.thread_index_in_simdgroup;
  for (std::size_t i = 0; i < 2; ++i) {
    m.a[element + i] = a[i];
    m.b[element + i] = b[i];
    m.c[element + i] = c[i];
  }
  if (group.arrived == kLanes - 1) {
    ++running_.matrix_operations;
    m.result = m.c;
    for (std::size_t row = 0; row < 8; ++row) {
      for (std::size_t k = 0; k < 8; ++k) {
        for (std::size_t column = 0; column < 8; ++column) {
          m.result[8 * row + column] += m.a[8 * row + k] * m.b[8 * k + column];
        }
      }
    }
  }
  meet(line);
  result[0] = m.result[element];
  result[1] = m.result[element + 1];
}

}  // namespace thalweg::metal
