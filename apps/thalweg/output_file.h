#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace thalweg::app {

// --force: replace the file that a command writes.
void add_force(CLI::App& command, bool& force);

// Called before the work begins. Throws for a file that is there, unless forced; for one of `inputs`, also through
// links and if forced; and for a folder that cannot be written. A device or a pipe is written to, and loses nothing.
void check_output(const std::string& path, bool force, const std::vector<std::string>& inputs = {});

// The file appears whole, or not at all.
void write_text(const std::string& path, const std::string& text);

}  // namespace thalweg::app
