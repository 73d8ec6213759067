// `thalweg bench --suite NAME`: what the cases of the table do not measure. Shapes on a GPU for which others publish
// times, or of which only the times matter; and on any backend what a call costs before its kernel starts.

#include <fmt/core.h>

#include <stdexcept>
#include <string>

#include "commands.h"
#include "core/device_functions.h"
#include "ops/backends.h"
#include "streams.h"

namespace thalweg::app {
namespace {

struct Suite {
  std::string_view name;
  int (*run)(const BenchOptions& options, const BackendInfo& backend);
};

constexpr Suite kSuites[] = {{"published", bench_prefill}, {"short", bench_prefill},   {"widths", bench_prefill},
                             {"decode", bench_decode},     {"experts", bench_experts}, {"moe", bench_moe},
                             {"linear", bench_linear},     {"calls", bench_calls}};

}  // namespace

int bench_suite(const BenchOptions& options) {
  std::string names;
  for (const Suite& suite : kSuites) {
    if (suite.name != options.suite) {
      names += (names.empty() ? "" : ", ") + std::string(suite.name);
      continue;
    }
    const std::vector<BackendInfo> backends = select_backends(options.selection);
    if (backends.size() != 1 || (backends[0].type == DeviceType::kCpu && suite.run != bench_calls)) {
      throw std::runtime_error("this suite is for a GPU: name it, as in --backend cuda");
    }
    if (!backends[0].available) {
      print("{}: skipped, {}\n", device_type_name(backends[0].type), backends[0].reason);
      return 1;  // what was asked for did not run
    }
    const DeviceFunctions* device = backend(backends[0].type).device;
    if (suite.run != bench_calls && (device == nullptr || device->speed == nullptr)) {
      throw std::runtime_error(
          fmt::format("nothing here measures the speed of {}'s memory, which this suite compares "
                      "with: try --backend cuda",
                      device_type_name(backends[0].type)));
    }
    return suite.run(options, backends[0]);
  }
  throw std::runtime_error("no suite '" + options.suite + "'; there are " + names);
}

}  // namespace thalweg::app
