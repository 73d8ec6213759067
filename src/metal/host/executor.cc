#include "metal/host/executor.h"

#include <algorithm>

#include "metal/host/machine.h"
#include "metal/host/private_storage.h"

namespace thalweg::metal {

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

std::uint64_t executor_command_buffers() {
  const std::lock_guard lock(machine_mutex());
  return machine().command_buffers;
}

void reset_executor_counts() {
  const std::lock_guard lock(machine_mutex());
  machine().counts.clear();
  machine().command_buffers = 0;
}

void add_programs(const CompiledProgram* const* programs, std::size_t count) {
  const std::lock_guard lock(machine_mutex());
  for (std::size_t i = 0; i < count; ++i) machine().add(programs[i]);
}

ExecutorEncoder::ExecutorEncoder(std::string_view operation) : lock_(machine_mutex()), operation_(operation) {
  machine().begin_run();
  ++machine().command_buffers;
}

void ExecutorEncoder::launch(const Launch& launch) {
  const bool empty = std::find(launch.grid.begin(), launch.grid.end(), 0U) != launch.grid.end();
  if (launch.indirect_grid == nullptr && empty) return;
  machine().launch(launch.operation.empty() ? operation_ : std::string(launch.operation), with_storage(launch));
}

}  // namespace thalweg::metal
