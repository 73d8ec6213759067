#pragma once

#include <string>
#include <vector>

namespace thalweg::io {

// The files that a model at `path` may be read from: every file of a folder, every file of a split GGUF model
// (name-00001-of-00003.gguf), or the file itself. Empty if there is none.
std::vector<std::string> model_files(const std::string& path);

}  // namespace thalweg::io
