#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace thalweg::app {

// --force: replace the file that a command writes.
void add_force(CLI::App& command, bool& force);

// The checks of a file that a command will write, before the work begins.

// Throws for one of the files that the run reads, also through links.
void check_not_read(const std::string& path, const std::vector<std::string>& inputs);
// Throws for a file that is there, unless forced, and for a folder that cannot be written. A device or a pipe loses
// nothing.
void check_output(const std::string& path, bool force);

// The file appears whole, or not at all.
void write_text(const std::string& path, const std::string& text);

}  // namespace thalweg::app
