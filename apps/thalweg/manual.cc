#include <fmt/core.h>

#include <cctype>
#include <filesystem>
#include <system_error>

#include "generated_text.h"
#include "output_file.h"
#include "version.h"

namespace thalweg::app {
namespace {

// Text for roff: no escapes, no line that is a request, hyphens that can be copied.
std::string roff(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    const bool line_begins = escaped.empty() || escaped.back() == '\n';
    if (line_begins && (c == '.' || c == '\'')) escaped += "\\&";
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string page_name(const CommandEntry& command) {
  return command.name.empty() ? "thalweg" : "thalweg-" + command.name;
}

std::string describe(const OptionEntry& option) {
  std::string text = roff(option.description);
  if (!option.choices.empty()) text += "\n.br\nOne of " + roff(join(option.choices, ", "));
  if (!option.range.empty()) text += "\n.br\nRange: " + roff(option.range);
  if (!option.default_value.empty()) text += "\n.br\nDefault: " + roff(option.default_value);
  if (option.required) text += "\n.br\nRequired";
  return text + "\n";
}

std::string synopsis(const CommandEntry& command) {
  std::string text = "\\fBthalweg";
  text += command.name.empty() ? "\\fR \\fICOMMAND\\fR" : " " + roff(command.name) + "\\fR";
  for (const OptionEntry& option : command.options) {
    if (!option.names.empty()) continue;
    const std::string name = "\\fI" + roff(option.argument) + "\\fR";
    text += option.required ? " " + name : " [" + name + "]";
  }
  return text + " [\\fIoptions\\fR]\n";
}

}  // namespace

std::string manual_page(const std::vector<CommandEntry>& tree, const CommandEntry& command) {
  std::string text =
      fmt::format(".TH \"{}\" 1 \"\" \"Thalweg {}\" \"User Commands\"\n", upper(page_name(command)), kVersion);
  // Lines as they come: no hyphens within names, no stretched spaces.
  text += ".nh\n.ad l\n";
  text += fmt::format(".SH NAME\n{} \\- {}\n", roff(page_name(command)), roff(command.description));
  text += ".SH SYNOPSIS\n" + synopsis(command);
  if (command.name.empty()) {
    text += ".SH COMMANDS\n";
    for (const CommandEntry& other : tree) {
      if (other.name.empty()) continue;
      text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(other.name), roff(other.description));
    }
  }
  std::string arguments;
  std::string options;
  for (const OptionEntry& option : command.options) {
    if (option.names.empty()) {
      arguments += fmt::format(".TP\n\\fI{}\\fR\n{}", roff(option.argument), describe(option));
      continue;
    }
    std::string names;
    for (const std::string& name : option.names) names += (names.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
    if (!option.value.empty()) names += " \\fI" + roff(option.value) + "\\fR";
    options += fmt::format(".TP\n{}\n{}", names, describe(option));
  }
  if (!arguments.empty()) text += ".SH ARGUMENTS\n" + arguments;
  text += ".SH OPTIONS\n" + options;
  if (!command.footer.empty()) text += ".SH NOTES\n" + roff(command.footer) + "\n";
  text +=
      ".SH ENVIRONMENT\n"
      ".TP\n\\fBTHALWEG_MODEL\\fR\nThe model of commands that are given none\n"
      ".TP\n\\fBNO_COLOR\\fR, \\fBCLICOLOR_FORCE\\fR, \\fBTERM\\fR\n"
      "Whether there are progress bars: where stderr is a terminal that is not dumb\n";
  text +=
      ".SH EXIT STATUS\n"
      "0; 1 when the answer is no (a check failed, a model cannot be run); 2 for an error, which is reported in "
      "one line\n";
  std::string others;
  for (const CommandEntry& other : tree) {
    if (&other == &command) continue;
    others += (others.empty() ? "\\fB" : ",\n\\fB") + roff(page_name(other)) + "\\fR(1)";
  }
  return text + ".SH SEE ALSO\n" + others + "\n";
}

void write_manual_pages(const std::vector<CommandEntry>& tree, const std::string& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);  // what fails here, fails again below
  for (const CommandEntry& command : tree) {
    write_text((std::filesystem::path(folder) / (page_name(command) + ".1")).string(), manual_page(tree, command));
  }
}

}  // namespace thalweg::app
