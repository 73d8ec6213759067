#include "terminal.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace thalweg::app {
namespace {

bool g_quiet = false;

// Empty where the variable is not set.
std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

bool takes_escapes(int stream) {
  const std::string_view terminal = variable("TERM");
  if (terminal.empty() || terminal == "dumb" || !variable("NO_COLOR").empty()) return false;
  const std::string_view force = variable("CLICOLOR_FORCE");
  return (!force.empty() && force != "0") || isatty(stream) == 1;
}

void be_quiet() { g_quiet = true; }

bool quiet() { return g_quiet; }

}  // namespace thalweg::app
