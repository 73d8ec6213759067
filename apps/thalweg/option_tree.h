#pragma once

// The commands and options as data, for what is generated from them: completions, manual pages, suggestions.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace thalweg::app {

struct OptionEntry {
  std::vector<std::string> names;    // with their dashes, short ones first; empty for an argument
  std::string argument;              // of an argument: FILE
  std::string value;                 // what it takes: INT, TEXT; empty for a flag
  std::vector<std::string> choices;  // if it takes one of these
  std::string range;                 // of a number: "0..1024"; may be empty
  std::string default_value;
  std::string description;
  bool required = false;
};

struct CommandEntry {
  std::string name;  // empty: the program
  std::string description;
  std::string footer;
  std::vector<OptionEntry> options;  // arguments included
};

// The program first; no hidden commands.
std::vector<CommandEntry> option_tree(const CLI::App& app);

// Of one command of the tree, with their dashes.
std::vector<std::string> option_names(const CommandEntry& command);

// "a b c"
std::string join(const std::vector<std::string>& words, const std::string& between);

}  // namespace thalweg::app
