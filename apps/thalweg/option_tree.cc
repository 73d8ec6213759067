#include "option_tree.h"

#include <sstream>

namespace thalweg::app {
namespace {

// "TEXT:{on,off,auto}" and "INT:0..1024": a type, and what the option's checks say of themselves.
void read_type(const std::string& type, OptionEntry& entry) {
  const std::size_t open = type.find('{');
  const std::size_t close = type.find('}');
  const std::size_t colon = type.find(':');
  entry.value = type.substr(0, std::min(colon, open));
  if (open != std::string::npos && close != std::string::npos) {
    std::istringstream list(type.substr(open + 1, close - open - 1));
    for (std::string choice; std::getline(list, choice, ',');) entry.choices.push_back(choice);
  } else if (colon != std::string::npos) {
    entry.range = type.substr(colon + 1);
  }
  if (entry.value.empty()) entry.value = "TEXT";
}

OptionEntry read_option(const CLI::Option& option) {
  OptionEntry entry;
  for (const std::string& name : option.get_snames()) entry.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) entry.names.push_back("--" + name);
  if (!option.nonpositional()) entry.argument = option.get_name(true);
  if (option.get_expected_max() != 0) read_type(option.get_type_name(), entry);
  entry.default_value = option.get_default_str();
  entry.description = option.get_description();
  entry.required = option.get_required();
  return entry;
}

CommandEntry read_command(const CLI::App& app) {
  CommandEntry entry;
  entry.name = app.get_name();
  entry.description = app.get_description();
  entry.footer = app.get_footer();
  for (const CLI::Option* option : app.get_options()) entry.options.push_back(read_option(*option));
  return entry;
}

}  // namespace

std::vector<CommandEntry> option_tree(const CLI::App& app) {
  std::vector<CommandEntry> tree = {read_command(app)};
  tree.front().name.clear();
  const auto visible = [](const CLI::App* command) { return !command->get_group().empty(); };
  for (const CLI::App* command : app.get_subcommands(visible)) tree.push_back(read_command(*command));
  return tree;
}

std::vector<std::string> option_names(const CommandEntry& command) {
  std::vector<std::string> names;
  for (const OptionEntry& option : command.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

std::string join(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

}  // namespace thalweg::app
