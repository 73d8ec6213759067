#pragma once

// Texts for shells and for man, made from the commands and options.

#include <string>
#include <vector>

#include "option_tree.h"

namespace thalweg::app {

// A script for bash, zsh or fish.
std::string bash_completion(const std::vector<CommandEntry>& tree);
std::string zsh_completion(const std::vector<CommandEntry>& tree);
std::string fish_completion(const std::vector<CommandEntry>& tree);

// The manual page of one command, the first of the tree for the program.
std::string manual_page(const std::vector<CommandEntry>& tree, const CommandEntry& command);
// thalweg.1, thalweg-generate.1 and so on.
void write_manual_pages(const std::vector<CommandEntry>& tree, const std::string& folder);

}  // namespace thalweg::app
