#include <fmt/core.h>

#include "commands.h"
#include "streams.h"

namespace thalweg::app {
namespace {

std::string kernels_of(const BackendInfo& backend, std::size_t operation) {
  std::string text;
  for (const std::string& kernel : backend.operations[operation].kernels) text += (text.empty() ? "" : ", ") + kernel;
  return text;
}

}  // namespace

int print_operations(bool markdown) {
  const std::vector<BackendInfo> list = backends();
  const char* row = markdown ? "| {} | {} | {} | {} |\n" : "{:<28} {:<28} {:<28} {}\n";
  write_output(fmt::format(fmt::runtime(row), "operation", "cpu", "cuda", "metal"));
  if (markdown) print("| --- | --- | --- | --- |\n");
  for (std::size_t i = 0; i < list.front().operations.size(); ++i) {
    const std::string& name = list.front().operations[i].name;
    std::string cells[3];
    for (std::size_t b = 0; b < list.size(); ++b) {
      const std::string kernels = kernels_of(list[b], i);
      cells[b] = kernels.empty() ? "-" : kernels;
    }
    write_output(fmt::format(fmt::runtime(row), markdown ? fmt::format("[`{0}`](docs/operations/{0}.md)", name) : name,
                             cells[0], cells[1], cells[2]));
  }
  if (markdown) return 0;
  for (const BackendInfo& backend : list) {
    print("\n{}: {}", device_type_name(backend.type), backend.available ? "available" : backend.reason);
    if (!backend.note.empty()) print(", {}", backend.note);
    for (const std::string& set : backend.instruction_sets) print(" {}", set);
  }
  print("\n");
  return 0;
}

}  // namespace thalweg::app
