#include <fmt/core.h>

#include "generated_text.h"

namespace thalweg::app {
namespace {

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
  return text;
}

// 'text' for a shell.
std::string shell_quoted(const std::string& text) { return "'" + replaced(text, "'", R"('\'')") + "'"; }

// For fish, where \ escapes within single quotes too.
std::string fish_quoted(const std::string& text) {
  return "'" + replaced(replaced(text, R"(\)", R"(\\)"), "'", R"(\')") + "'";
}

// Whether a value may be the name of a file.
bool is_text(const OptionEntry& option) { return option.choices.empty() && option.value.starts_with("TEXT"); }

std::vector<std::string> command_names(const std::vector<CommandEntry>& tree) {
  std::vector<std::string> names;
  for (const CommandEntry& command : tree) {
    if (!command.name.empty()) names.push_back(command.name);
  }
  return names;
}

// What the arguments of a command may be, those that are not files.
std::vector<std::string> argument_choices(const CommandEntry& command) {
  std::vector<std::string> all;
  for (const OptionEntry& option : command.options) {
    if (option.names.empty()) all.insert(all.end(), option.choices.begin(), option.choices.end());
  }
  return all;
}

bool has_file_arguments(const CommandEntry& command) {
  for (const OptionEntry& option : command.options) {
    if (option.names.empty() && is_text(option)) return true;
  }
  return false;
}

}  // namespace

std::string bash_completion(const std::vector<CommandEntry>& tree) {
  std::string text = R"(# Completion of thalweg for bash, from `thalweg completion bash`.
_thalweg() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= options= words= files= i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [[ ${COMP_WORDS[i]} != -* ]]; then
      command=${COMP_WORDS[i]}
      break
    fi
  done
  COMPREPLY=()
  case $command in
)";
  for (const CommandEntry& command : tree) {
    text += fmt::format("    {})\n", command.name.empty() ? "''" : command.name);
    std::string values;
    std::string numbers;
    std::string files;
    for (const OptionEntry& option : command.options) {
      if (option.names.empty() || option.value.empty()) continue;
      const std::string names = join(option.names, "|");
      if (!option.choices.empty()) {
        values += fmt::format("        {}) COMPREPLY=($(compgen -W {} -- \"$word\")); return ;;\n", names,
                              shell_quoted(join(option.choices, " ")));
      } else {
        std::string& group = is_text(option) ? files : numbers;
        group += (group.empty() ? "" : "|") + names;
      }
    }
    if (!files.empty()) values += fmt::format("        {}) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n", files);
    if (!numbers.empty()) values += fmt::format("        {}) return ;;\n", numbers);
    if (!values.empty()) text += "      case $before in\n" + values + "      esac\n";
    text += fmt::format("      options={}\n", shell_quoted(join(option_names(command), " ")));
    const std::vector<std::string> words = command.name.empty() ? command_names(tree) : argument_choices(command);
    if (!words.empty()) text += fmt::format("      words={}\n", shell_quoted(join(words, " ")));
    if (has_file_arguments(command)) text += "      files=1\n";
    text += "      ;;\n";
  }
  return text + R"(  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
    return
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  if [[ $files ]]; then COMPREPLY+=($(compgen -f -- "$word")); fi
}
complete -o filenames -F _thalweg thalweg
)";
}

std::string zsh_completion(const std::vector<CommandEntry>& tree) {
  // Of a description within an option's brackets.
  const auto plain = [](const std::string& text) {
    return replaced(replaced(replaced(replaced(text, R"(\)", R"(\\)"), "[", R"(\[)"), "]", R"(\])"), ":", R"(\:)");
  };
  const auto value = [](const OptionEntry& option) -> std::string {
    if (!option.choices.empty()) return "(" + join(option.choices, " ") + ")";
    return is_text(option) ? "_files" : " ";
  };
  const auto options_of = [&](const CommandEntry& command) {
    std::string text;
    for (const OptionEntry& option : command.options) {
      if (option.names.empty()) {
        text += " \\\n        " + shell_quoted(":" + plain(option.argument) + ":" + value(option));
        continue;
      }
      for (const std::string& name : option.names) {
        std::string spec = "(" + join(option.names, " ") + ")" + name + "[" + plain(option.description) + "]";
        if (!option.value.empty()) spec += ":" + plain(option.value) + ":" + value(option);
        text += " \\\n        " + shell_quoted(spec);
      }
    }
    return text;
  };
  std::string text = R"(#compdef thalweg
# Completion of thalweg for zsh, from `thalweg completion zsh`.
_thalweg() {
  local context state state_descr line
  typeset -A opt_args
)";
  text +=
      "  _arguments -C" + options_of(tree.front()) + " \\\n        '1:command:->command' '*::argument:->argument'\n";
  text += "  case $state in\n    command)\n      local -a commands=(\n";
  for (const CommandEntry& command : tree) {
    if (!command.name.empty()) {
      text += "        " + shell_quoted(command.name + ":" + replaced(command.description, ":", R"(\:)")) + "\n";
    }
  }
  text += "      )\n      _describe command commands\n      ;;\n    argument)\n      case $line[1] in\n";
  for (const CommandEntry& command : tree) {
    if (command.name.empty()) continue;
    text += fmt::format("        {})\n      _arguments{}\n          ;;\n", command.name, options_of(command));
  }
  return text + R"(      esac
      ;;
  esac
}
if [[ $funcstack[1] == _thalweg ]]; then
  _thalweg "$@"
else
  compdef _thalweg thalweg
fi
)";
}

std::string fish_completion(const std::vector<CommandEntry>& tree) {
  std::string text = "# Completion of thalweg for fish, from `thalweg completion fish`.\n";
  const std::string names = join(command_names(tree), " ");
  const std::string none_yet = shell_quoted("not __fish_seen_subcommand_from " + names);
  for (const CommandEntry& command : tree) {
    if (command.name.empty()) continue;
    text += fmt::format("complete -c thalweg -f -n {} -a {} -d {}\n", none_yet, command.name,
                        fish_quoted(command.description));
  }
  for (const CommandEntry& command : tree) {
    const std::string when =
        command.name.empty() ? none_yet : shell_quoted("__fish_seen_subcommand_from " + command.name);
    std::string arguments;
    for (const OptionEntry& option : command.options) {
      if (option.names.empty()) continue;
      text += fmt::format("complete -c thalweg -n {}", when);
      for (const std::string& name : option.names) {
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (!option.choices.empty()) {
        text += " -x -a " + shell_quoted(join(option.choices, " "));
      } else if (!option.value.empty()) {
        text += is_text(option) ? " -r -F" : " -x";
      }
      text += " -d " + fish_quoted(option.description) + "\n";
    }
    if (command.name.empty()) continue;
    const std::vector<std::string> choices = argument_choices(command);
    if (!has_file_arguments(command)) arguments += " -f";
    if (!choices.empty()) arguments += " -a " + shell_quoted(join(choices, " "));
    if (!arguments.empty()) text += fmt::format("complete -c thalweg -n {}{}\n", when, arguments);
  }
  return text;
}

}  // namespace thalweg::app
