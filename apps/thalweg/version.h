#pragma once

#include <string>

namespace thalweg::app {

extern const char* const kVersion;  // "0.1.0"

// What `thalweg --version` prints: version, commit, compiler, and what this build can run here.
std::string version_text();

}  // namespace thalweg::app
