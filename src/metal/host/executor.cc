#include "metal/host/executor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "metal/host/fibres.h"
#include "metal/host/kernel_runtime.h"
#include "metal/host/memory_checks.h"
#include "thalweg/error.h"

// The linker's: from here to there lie the program's own constants, which kernels may read.
extern "C" char __executable_start;  // NOLINT(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" char _end;                // NOLINT(bugprone-reserved-identifier,readability-identifier-naming)

namespace thalweg::metal {
namespace {

constexpr std::uint32_t kLanes = 32;
// What a kernel sees that looks at a constant which the launch did not set.
constexpr std::int32_t kUnsetConstant = -1000000007;

struct Thread {
  enum class State { kReady, kAtBarrier, kInSimdgroup, kFinished };
  State state = State::kReady;
  int line = 0;  // of what it waits for
  Fibre fibre;
  Place place{};
  Accessor accessor;
  std::uint32_t matrix_access = 0;  // as thalweg_matrix_access() was told
};

// Where the lanes of a simdgroup meet. Values stay until the meeting after the next: a lane can be one ahead at most.
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

// Everything about the threadgroup that is running; there is one at a time.
class Machine {
 public:
  void add(const CompiledProgram* program) { programs_.push_back(program); }
  void begin_run();
  void launch(const std::string& operation, const Launch& launch);

  std::vector<KernelCounts> counts;

  // Called by kernels.
  void access(const void* address, std::size_t bytes, bool write, bool atomic);
  void barrier(unsigned flags, int line);
  Simdgroup& meet(int line);  // returns when all lanes have come
  void simdgroup_barrier(unsigned flags, int line);
  void multiply(const float* a, const float* b, const float* c, float* result, int line);
  Thread& current() { return *current_; }
  Simdgroup& current_simdgroup() { return simdgroups_[current_->place.simdgroup_index_in_threadgroup]; }
  [[noreturn]] void fault(std::string what);
  const void* stacks_begin() const { return stacks_.begin(0); }

 private:
  const CompiledKernel& find(const std::string& operation, std::string_view name,
                             const CompiledProgram*& program) const;
  void prepare(const Launch& launch, const CompiledKernel& kernel, const CompiledProgram& program);
  void run_threadgroup(std::uint32_t x, std::uint32_t y, std::uint32_t z);
  std::string stuck() const;
  static void body(void* thread);

  FibreStacks stacks_;
  MemoryChecks checks_;
  std::vector<const CompiledProgram*> programs_;
  std::vector<Thread> threads_ = std::vector<Thread>(FibreStacks::kMaxThreads);
  std::vector<Simdgroup> simdgroups_ = std::vector<Simdgroup>(FibreStacks::kMaxThreads / kLanes);
  Thread* current_ = nullptr;
  const CompiledKernel* kernel_ = nullptr;
  Memory memory_{};
  std::vector<char> parameters_;
  std::uint32_t num_threads_ = 0;
  std::uint32_t finished_ = 0;
  std::uint32_t at_barrier_ = 0;
  unsigned barrier_flags_ = 0;
  int barrier_line_ = 0;
  Accessor now_;  // what all threads of the threadgroup share
  Counts running_;
  std::string fault_;
};

Machine& machine() {
  static Machine instance;
  return instance;
}

std::mutex& machine_mutex() {
  static std::mutex instance;
  return instance;
}

void Machine::fault(std::string what) {
  fault_ = std::move(what);
  current_->fibre.finish();
}

void Machine::begin_run() {
  checks_.reset();
  now_ = {};
  now_.interval = now_.launch_begin = 1;  // 0 stands for no access
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
  const auto refuse = [&](const std::string& what) {
    throw Error(operation, "kernel " + std::string(launch.kernel), "a launch that Metal allows", what);
  };
  if (launch.threads % kLanes != 0 || launch.threads > kernel.max_threads || launch.threads == 0) {
    refuse(std::to_string(launch.threads) + " threads");
  }
  if (launch.threadgroup_bytes > kMaxThreadgroupBytes || launch.threadgroup_bytes % 16 != 0) {
    refuse(std::to_string(launch.threadgroup_bytes) + " bytes of threadgroup memory");
  }
  if (kernel.buffers >> (launch.num_buffers + 1) != 0 || launch.parameter_bytes > 4096) refuse("missing buffers");
  if (launch.indirect_grid != nullptr && !launch.after_previous) refuse("a grid that may not have been written yet");
  prepare(launch, kernel, *program);
  if (launch.after_previous) now_.launch_begin = now_.interval + 1;
  std::array<std::uint32_t, 3> grid = launch.grid;
  if (launch.indirect_grid != nullptr) std::copy_n(launch.indirect_grid, 3, grid.begin());
  running_ = {};
  running_.launches = 1;
  running_.dependencies = launch.after_previous ? 1 : 0;
  running_.threadgroup_bytes = launch.threadgroup_bytes;
  for (std::uint32_t i = 0; i < num_threads_; ++i) {
    Place& place = threads_[i].place;
    std::copy_n(grid.begin(), 3, place.threadgroups_per_grid);
    place.thread_index_in_threadgroup = i;
    place.simdgroup_index_in_threadgroup = i / kLanes;
    place.simdgroups_per_threadgroup = num_threads_ / kLanes;
    place.thread_index_in_simdgroup = i % kLanes;
  }
  for (std::uint32_t z = 0; z < grid[2]; ++z) {
    for (std::uint32_t y = 0; y < grid[1]; ++y) {
      for (std::uint32_t x = 0; x < grid[0]; ++x) {
        run_threadgroup(x, y, z);
        if (fault_.empty()) continue;
        const std::string thread =
            current_ == nullptr ? "" : ", thread " + std::to_string(current_->place.thread_index_in_threadgroup);
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

// Not instrumented: AddressSanitizer would keep the two locals on a stack of its own.
[[gnu::no_sanitize_address]] void Machine::body(void* thread) {
  auto* self = static_cast<Thread*>(thread);
  Machine& m = machine();
  // On the fibre's own stack, where reads are not checked.
  const Memory memory = m.memory_;
  const Place place = self->place;
  m.kernel_->call(memory, place);
  self->state = Thread::State::kFinished;
  ++m.finished_;
  self->fibre.finish();
}

void Machine::run_threadgroup(std::uint32_t x, std::uint32_t y, std::uint32_t z) {
  ++running_.threadgroups;
  ++now_.interval;
  now_.threadgroup_begin = now_.threadgroup_interval = now_.device_interval = now_.interval;
  checks_.poison_threadgroup_memory();
  finished_ = at_barrier_ = 0;
  for (std::uint32_t i = 0; i < num_threads_; ++i) {
    Thread& thread = threads_[i];
    const std::array<std::uint32_t, 3> position = {x, y, z};
    std::copy_n(position.begin(), 3, thread.place.threadgroup_position_in_grid);
    thread.state = Thread::State::kReady;
    thread.accessor = {};
    thread.matrix_access = 0;
    thread.fibre.start(stacks_, i, &Machine::body, &thread);
    simdgroups_[i / kLanes].arrived = 0;
  }
  while (finished_ < num_threads_) {
    bool progress = false;
    for (std::uint32_t i = 0; i < num_threads_; ++i) {
      Thread& thread = threads_[i];
      if (thread.state != Thread::State::kReady) continue;
      progress = true;
      current_ = &thread;
      thread.fibre.resume();
      if (!fault_.empty()) return;
      // Lanes that met go on before other simdgroups do: what they just wrote is still at hand.
      if (i % kLanes == kLanes - 1 && threads_[i - i % kLanes].state == Thread::State::kReady) i -= i % kLanes + 1;
    }
    if (progress || finished_ == num_threads_) continue;
    current_ = nullptr;
    fault_ = stuck();
    return;
  }
}

// Some threads wait for others that will not come.
std::string Machine::stuck() const {
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
  const auto* place = static_cast<const char*>(address);
  const auto* stacks = reinterpret_cast<const char*>(stacks_.begin(0));
  if (place >= stacks && place < stacks + FibreStacks::kMaxThreads * FibreStacks::kStackBytes) return;
  if (!write && place >= &__executable_start && place < &_end) {
    if (bytes == sizeof(kUnsetConstant) && std::memcmp(place, &kUnsetConstant, bytes) == 0) {
      fault("read of a function constant that the launch did not set");
    }
    return;
  }
  Accessor& by = current_->accessor;
  const std::uint32_t index = current_->place.thread_index_in_threadgroup;
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
    self.fibre.give_way();
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
    self.fibre.give_way();
    return group;
  }
  group.arrived = 0;
  ++group.meeting;
  Thread* first = &threads_[self.place.simdgroup_index_in_threadgroup * kLanes];
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
  const std::size_t place = 2 * current_->place.thread_index_in_simdgroup;
  for (std::size_t i = 0; i < 2; ++i) {
    m.a[place + i] = a[i];
    m.b[place + i] = b[i];
    m.c[place + i] = c[i];
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
  result[0] = m.result[place];
  result[1] = m.result[place + 1];
}

// Every lane gives a word and sees all of them.
const std::array<std::uint32_t, kLanes>& exchange(std::uint32_t word, int line) {
  Machine& m = machine();
  Simdgroup& group = m.current_simdgroup();
  auto& words = group.words[group.meeting % 2];
  words[m.current().place.thread_index_in_simdgroup] = word;
  m.meet(line);
  return words;
}

std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
float float_of(std::uint32_t bits) {
  float value = 0.0F;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
std::uint32_t lane() { return machine().current().place.thread_index_in_simdgroup; }

}  // namespace

Counts& Counts::operator+=(const Counts& other) {
  launches += other.launches;
  dependencies += other.dependencies;
  threadgroups += other.threadgroups;
  device_bytes_read += other.device_bytes_read;
  device_bytes_written += other.device_bytes_written;
  barriers += other.barriers;
  matrix_operations += other.matrix_operations;
  threadgroup_bytes = std::max(threadgroup_bytes, other.threadgroup_bytes);
  return *this;
}

std::vector<KernelCounts> executor_counts() {
  const std::lock_guard lock(machine_mutex());
  return machine().counts;
}

Counts executor_total() {
  Counts total;
  for (const KernelCounts& kernel : executor_counts()) total += kernel.counts;
  return total;
}

void reset_executor_counts() {
  const std::lock_guard lock(machine_mutex());
  machine().counts.clear();
}

void add_programs(const CompiledProgram* const* programs, std::size_t count) {
  const std::lock_guard lock(machine_mutex());
  for (std::size_t i = 0; i < count; ++i) machine().add(programs[i]);
}

ExecutorEncoder::ExecutorEncoder(std::string_view operation) : lock_(machine_mutex()), operation_(operation) {
  machine().begin_run();
}

void ExecutorEncoder::launch(const Launch& launch) {
  const bool empty = std::find(launch.grid.begin(), launch.grid.end(), 0U) != launch.grid.end();
  if (launch.indirect_grid == nullptr && empty) return;
  machine().launch(operation_, launch);
}

}  // namespace thalweg::metal

using thalweg::metal::machine;

extern "C" {

void thalweg_threadgroup_barrier(unsigned flags, int line) { machine().barrier(flags, line); }
void thalweg_simdgroup_barrier(unsigned flags, int line) { machine().simdgroup_barrier(flags, line); }

unsigned thalweg_simd_shuffle(unsigned value, unsigned from, int line) {
  const auto& words = thalweg::metal::exchange(value, line);
  return words[from % thalweg::metal::kLanes];
}
float thalweg_simd_sum(float value, int line) {
  float sum = 0.0F;
  for (const std::uint32_t word : thalweg::metal::exchange(thalweg::metal::bits_of(value), line)) {
    sum += thalweg::metal::float_of(word);
  }
  return sum;
}
unsigned thalweg_simd_sum_uint(unsigned value, int line) {
  unsigned sum = 0;
  for (const std::uint32_t word : thalweg::metal::exchange(value, line)) sum += word;
  return sum;
}
float thalweg_simd_max(float value, int line) {
  float largest = value;
  for (const std::uint32_t word : thalweg::metal::exchange(thalweg::metal::bits_of(value), line)) {
    largest = std::max(largest, thalweg::metal::float_of(word));
  }
  return largest;
}
float thalweg_simd_prefix_sum(float value, bool inclusive, int line) {
  const auto& words = thalweg::metal::exchange(thalweg::metal::bits_of(value), line);
  const std::size_t end = thalweg::metal::lane() + (inclusive ? 1 : 0);
  float sum = 0.0F;
  for (std::size_t i = 0; i < end; ++i) sum += thalweg::metal::float_of(words[i]);
  return sum;
}
unsigned thalweg_simd_prefix_sum_uint(unsigned value, bool inclusive, int line) {
  const auto& words = thalweg::metal::exchange(value, line);
  const std::size_t end = thalweg::metal::lane() + (inclusive ? 1 : 0);
  unsigned sum = 0;
  for (std::size_t i = 0; i < end; ++i) sum += words[i];
  return sum;
}

void thalweg_matrix_access(unsigned kind) { machine().current().matrix_access = kind; }
unsigned thalweg_lane() { return thalweg::metal::lane(); }

void thalweg_simdgroup_multiply(const float a[2], const float b[2], const float c[2], float result[2], int line) {
  machine().multiply(a, b, c, result, line);
}

unsigned thalweg_atomic_add(void* address, unsigned value) {
  machine().access(address, sizeof(unsigned), true, true);
  auto* word = static_cast<unsigned*>(address);
  const unsigned before = *word;
  *word += value;
  return before;
}
unsigned thalweg_atomic_or(void* address, unsigned value) {
  machine().access(address, sizeof(unsigned), true, true);
  auto* word = static_cast<unsigned*>(address);
  const unsigned before = *word;
  *word |= value;
  return before;
}
unsigned thalweg_atomic_load(const void* address) {
  machine().access(address, sizeof(unsigned), false, true);
  return *static_cast<const unsigned*>(address);
}
void thalweg_atomic_store(void* address, unsigned value) {
  machine().access(address, sizeof(unsigned), true, true);
  *static_cast<unsigned*>(address) = value;
}

// Called before every load and store of a compiled kernel, by clang's -fsanitize-coverage=trace-loads,trace-stores.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
void __sanitizer_cov_load1(const void* address) { machine().access(address, 1, false, false); }
void __sanitizer_cov_load2(const void* address) { machine().access(address, 2, false, false); }
void __sanitizer_cov_load4(const void* address) { machine().access(address, 4, false, false); }
void __sanitizer_cov_load8(const void* address) { machine().access(address, 8, false, false); }
void __sanitizer_cov_load16(const void* address) { machine().access(address, 16, false, false); }
void __sanitizer_cov_store1(void* address) { machine().access(address, 1, true, false); }
void __sanitizer_cov_store2(void* address) { machine().access(address, 2, true, false); }
void __sanitizer_cov_store4(void* address) { machine().access(address, 4, true, false); }
void __sanitizer_cov_store8(void* address) { machine().access(address, 8, true, false); }
void __sanitizer_cov_store16(void* address) { machine().access(address, 16, true, false); }
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

}  // extern "C"
