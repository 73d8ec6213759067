#include "version.h"

#include <fmt/core.h>

#include "build_info.h"
#include "option_tree.h"
#include "thalweg/backend.h"

namespace thalweg::app {

const char* const kVersion = THALWEG_VERSION;

std::string version_text() {
  std::string text = fmt::format("thalweg {}\n", kVersion);
  const auto row = [&](const std::string& what, const std::string& value) {
    text += fmt::format("{:<18}{}\n", what, value);
  };
  row("commit", THALWEG_COMMIT);
  row("compiler", THALWEG_COMPILER);
  const std::vector<BackendInfo> list = backends();
  row("instruction sets", join(list.front().instruction_sets, " ") + ", the first is used");
  for (const BackendInfo& backend : list) {
    row(fmt::format("backend {}", device_type_name(backend.type)),
        (backend.available ? "available" : backend.reason) + (backend.note.empty() ? "" : ", " + backend.note));
  }
  text.pop_back();
  return text;
}

}  // namespace thalweg::app
