#include "ops/backends.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>

#include "core/selected_kernels.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "metal/backend.h"
#include "thalweg/backend.h"
#include "thalweg/error.h"

namespace thalweg {
namespace {

using KernelNames = std::map<std::string, std::string, std::less<>>;  // by operation

[[noreturn]] void refuse_environment(std::string_view expected, std::string_view entry) {
  throw Error("THALWEG_KERNEL", "environment variable", expected, "'" + std::string(entry) + "'");
}

// The kernels of an operation on all backends of this build; none for a name that is no operation's.
std::vector<std::string> kernels_of(std::string_view operation) {
  std::vector<std::string> names;
  for (const BackendInfo& info : backends()) {
    for (const OperationInfo& offered : info.operations) {
      if (offered.name == operation) names.insert(names.end(), offered.kernels.begin(), offered.kernels.end());
    }
  }
  return names;
}

// THALWEG_KERNEL=<operation>:<kernel>[,<operation>:<kernel>...]. Throws Error at what is not that, or names what this
// build does not have: a forced kernel that silently does not run would be measured for another.
KernelNames read_environment() {
  KernelNames selection;
  const char* variable = std::getenv("THALWEG_KERNEL");
  std::string_view text = variable != nullptr ? variable : "";
  while (!text.empty()) {
    const std::string_view entry = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
    const std::size_t colon = entry.find(':');
    if (colon == std::string_view::npos) refuse_environment("<operation>:<kernel>[,...]", entry);
    const std::string_view operation = entry.substr(0, colon);
    const std::string_view kernel = entry.substr(colon + 1);
    const std::vector<std::string> known = kernels_of(operation);
    if (known.empty()) refuse_environment("the name of an operation before the colon", entry);
    if (std::find(known.begin(), known.end(), kernel) == known.end()) {
      std::string names;
      for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
      refuse_environment("a kernel of " + std::string(operation) + " after the colon: " + names, entry);
    }
    selection.emplace(operation, kernel);
  }
  return selection;
}

// What THALWEG_KERNEL names. The first call selects it.
const KernelNames& outside_selection() {
  static const KernelNames names = [] {
    KernelNames read = read_environment();
    for (const auto& [operation, kernel] : read) selected_kernels().select(operation, kernel);
    return read;
  }();
  return names;
}

}  // namespace

const Backend& backend(DeviceType type) {
  switch (type) {
    case DeviceType::kCuda:
      return cu::backend();
    case DeviceType::kMetal:
      return metal::backend();
    case DeviceType::kCpu:
      break;
  }
  return cpu::backend();
}

std::string selected_kernel(std::string_view operation) {
  outside_selection();
  return selected_kernels().of(operation);
}

void fail_without_kernel(const Explanation& explanation, const std::string& unavailable) {
  if (!unavailable.empty()) throw Error(explanation.operation, "stream", "an available backend", unavailable);
  std::string reasons;
  for (const KernelVerdict& verdict : explanation.kernels) {
    if (!reasons.empty()) reasons += "; ";
    reasons += verdict.kernel + ": " + (verdict.supported ? "not selected" : verdict.reason);
  }
  throw Error(explanation.operation, "arguments", "what a kernel of the " + explanation.backend + " backend supports",
              reasons.empty() ? "an operation that it does not offer" : reasons);
}

void select_kernel(std::string_view operation, std::string_view kernel) {
  const std::vector<std::string> known = kernels_of(operation);
  if (!kernel.empty() && std::find(known.begin(), known.end(), kernel) == known.end()) {
    throw Error("select_kernel", "kernel", "a kernel of " + std::string(operation), kernel);
  }
  const KernelNames& outside = outside_selection();
  const auto found = outside.find(operation);
  selected_kernels().select(operation, kernel.empty() && found != outside.end() ? found->second : kernel);
}

std::vector<BackendInfo> backends() {
  std::vector<BackendInfo> result;
  for (const DeviceType type : {DeviceType::kCpu, DeviceType::kCuda, DeviceType::kMetal}) {
    const Backend& source = backend(type);
    BackendInfo info{type, source.unavailable.empty(), source.unavailable, {}, {}, source.note};
    if (source.instruction_sets != nullptr) info.instruction_sets = source.instruction_sets();
    for_each_operation([&]<class Args>() {
      OperationInfo operation{std::string(Args::kName), {}};
      for (const Kernel<Args>& kernel : source.kernels_of<Args>()) operation.kernels.emplace_back(kernel.name);
      info.operations.push_back(std::move(operation));
    });
    result.push_back(std::move(info));
  }
  return result;
}

std::optional<Device> device_from_name(std::string_view name) {
  if (name == "auto") return std::nullopt;
  const std::size_t colon = name.find(':');
  for (const DeviceType type : {DeviceType::kCpu, DeviceType::kCuda, DeviceType::kMetal}) {
    if (name.substr(0, colon) != device_type_name(type)) continue;
    if (colon == std::string_view::npos) return Device{type, 0};
    const std::string_view digits = name.substr(colon + 1);
    int index = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    const bool is_number = error == std::errc() && end == digits.data() + digits.size() && index >= 0;
    if (is_number && (type != DeviceType::kCpu || index == 0)) return Device{type, index};
  }
  throw Error("device", "name", "auto, cpu, cuda, cuda:N or metal", name);
}

void select_instruction_set(std::string_view name) {
  if (!cpu::backend().select_instruction_set(name)) {
    throw Error("select_instruction_set", "name", "an instruction set that this machine can run", name);
  }
}

}  // namespace thalweg
