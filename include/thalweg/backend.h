#pragma once

// What this build and this machine can run, and ways to select it for tests and measurements. Any thread may call
// backends() and device_from_name() at any time; the two that select hold for the whole process, and nothing else may
// run beside them.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "thalweg/api.h"
#include "thalweg/device.h"

THALWEG_API_BEGIN
namespace thalweg {

struct OperationInfo {
  std::string name;
  std::vector<std::string> kernels;  // in the order of the list; empty: the backend does not offer the operation
};

struct BackendInfo {
  DeviceType type = DeviceType::kCpu;
  bool available = false;
  std::string reason;                         // why not available
  std::vector<std::string> instruction_sets;  // that this machine can run, best first; empty for GPUs
  std::vector<OperationInfo> operations;      // every public operation
  std::string note;                           // how it runs, if its name does not say so
};

// Every backend, absent ones included, CPU first.
std::vector<BackendInfo> backends();

// "cpu", "cuda", "cuda:1", "metal"; nullopt for "auto". Throws Error for any other name.
std::optional<Device> device_from_name(std::string_view name);

// Makes the CPU backend use one of its instruction_sets, the best if `name` is empty. Process-wide; no operation may
// be running.
void select_instruction_set(std::string_view name);

// Makes dispatch use one kernel of an operation, and throw where it does not support the arguments. An empty `kernel`
// restores the choice of the variable THALWEG_KERNEL, or the default. A kernel that is made of other operations follows
// the choice for these where the chosen kernel supports them. Process-wide; no operation may be running.
void select_kernel(std::string_view operation, std::string_view kernel);

}  // namespace thalweg
THALWEG_API_END
