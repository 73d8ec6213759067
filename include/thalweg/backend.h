#pragma once

// What this build and this machine can run, and ways to pin it down for tests and measurements.

#include <string>
#include <string_view>
#include <vector>

#include "thalweg/device.h"

namespace thalweg {

struct OperationInfo {
  std::string name;
  std::vector<std::string> kernels;  // in order of preference; empty: the backend does not offer the operation
};

struct BackendInfo {
  DeviceType type = DeviceType::kCpu;
  bool available = false;
  std::string reason;                         // why not available
  std::vector<std::string> instruction_sets;  // that this machine can run, best first; empty for GPUs
  std::vector<OperationInfo> operations;      // every public operation
  std::string note;                           // how it runs, where its name does not say it
};

// Every backend, absent ones included, CPU first.
std::vector<BackendInfo> backends();

// Makes the CPU backend use one of its instruction_sets, the best if `name` is empty. Process-wide; no operation may
// be running.
void select_instruction_set(std::string_view name);

// Makes dispatch use one kernel of an operation whenever it supports the arguments and throw where it does not; an
// empty `kernel` undoes it, back to what the variable THALWEG_KERNEL names. Process-wide; no operation may be running.
void select_kernel(std::string_view operation, std::string_view kernel);

}  // namespace thalweg
