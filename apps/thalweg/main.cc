// The command line. The commands for models are in files of their own; those for kernels are declared here.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <new>
#include <random>
#include <regex>
#include <stdexcept>

#include "commands.h"
#include "common_options.h"
#include "generated_text.h"
#include "interrupt.h"
#include "io/printable.h"
#include "memory_nodes.h"
#include "metal/host/attach.h"
#include "model_commands.h"
#include "model_options.h"
#include "names.h"
#include "option_tree.h"
#include "output_file.h"
#include "streams.h"
#include "version.h"

namespace thalweg::app {

namespace {

std::regex case_pattern(const std::string& text) {
  constexpr std::size_t kLongest = 1000;  // the library compiles patterns recursively
  if (text.size() > kLongest) {
    throw std::runtime_error(fmt::format("--case: give a regular expression of at most {} characters", kLongest));
  }
  try {
    return std::regex(text, std::regex::ECMAScript);
  } catch (const std::regex_error&) {
    throw std::runtime_error("--case: '" + text +
                             "' is no regular expression that can be used; write \\ before ( [ * and the like");
  }
}

}  // namespace

std::vector<const cases::Case*> select_cases(const Selection& selection, bool for_bench) {
  const std::regex pattern = case_pattern(selection.case_regex);
  const std::vector<std::string>& wanted = selection.operations;
  for (const std::string& name : wanted) {
    if (name == "model" && for_bench)
      throw std::runtime_error("--op model runs alone: name no other operation with it");
    const auto named = [&](const cases::Case& candidate) { return candidate.operation == name; };
    if (std::none_of(cases::all_cases().begin(), cases::all_cases().end(), named)) {
      throw std::runtime_error("no operation is called '" + name + "'; `thalweg operations` lists them");
    }
  }
  std::vector<const cases::Case*> selected;
  for (const cases::Case& candidate : cases::all_cases()) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), candidate.operation) == wanted.end()) continue;
    if (!(for_bench ? candidate.bench || candidate.large : candidate.verify)) continue;
    if (std::regex_search(candidate.name, pattern)) selected.push_back(&candidate);
  }
  return selected;
}

std::vector<BackendInfo> select_backends(const Selection& selection) {
  std::vector<BackendInfo> selected;
  for (BackendInfo& info : backends()) {
    if (selection.backend == "all" || selection.backend == device_type_name(info.type)) {
      selected.push_back(std::move(info));
    }
  }
  return selected;
}

namespace {

void add_selection(CLI::App& command, Selection& selection) {
  command.add_option("--backend", selection.backend, "cpu, cuda, metal or all")
      ->check(CLI::IsMember({"cpu", "cuda", "metal", "all"}))
      ->capture_default_str();
  command.add_option("--op", selection.operations, "Only these operations, separated by commas")->delimiter(',');
  command.add_option("--case", selection.case_regex, "Only cases whose name this regular expression finds");
}

void add_verify(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("verify", "Check every kernel against the float64 oracles");
  auto options = std::make_shared<VerifyOptions>();
  auto seed = std::make_shared<std::string>("1");
  add_selection(*command, options->selection);
  command->add_option("-s,--seed", *seed, "Seed of the inputs: a number, or 'random'")
      ->check(seed_number("random"))
      ->capture_default_str();
  add_threads(*command, options->threads);
  command->add_option("--runs", options->runs, "Runs of each case; all must leave the same bits")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
  command->add_flag("--allow-skipped", options->allow_skipped,
                    "Exit with 0 even if nothing ran of what --op, --case and --backend select");
  command->add_option("--json", options->json, "Write the results to this file");
  add_force(*command, options->force);
  add_quiet(*command);
  command->callback([options, seed, &exit_code] {
    if (!options->json.empty()) check_output(options->json, options->force);
    options->seed = *seed == "random" ? std::random_device{}() : std::strtoull(seed->c_str(), nullptr, 10);
    exit_code = verify(*options);
  });
}

CLI::Validator decode_row() {
  const auto check = [](std::string& text) {
    const std::optional<DecodeRow> row = decode_row_of(text);
    return row ? std::string() : fmt::format("give sequences and tokens as in 8x512, not '{}'", io::printable(text));
  };
  return {check, "NxTOKENS"};
}

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "bench",
      "Time the kernels, after checking what they compute; --op model: whole models, --op engine: many requests at "
      "once, --op conversation: turns and the prefix cache, --op grammar: constrained decoding, --op draft: guessed "
      "tokens");
  auto options = std::make_shared<BenchOptions>();
  add_selection(*command, options->selection);
  add_threads(*command, options->threads);
  add_numa(*command, options->interleave);
  command->add_option("--instruction-set", options->instruction_set,
                      "Of the CPU's kernels, one of those that `thalweg operations` lists, instead of the best");
  command
      ->add_option_function<double>(
          "--seconds", [options](double seconds) { options->seconds = options->model_seconds = seconds; },
          "Time to measure each case for, 0.5 if not given; on the CPU each model of --op model and prompt, 10")
      ->check(number(0.0, 86400.0));
  command->add_flag("--all-kernels", options->all_kernels, "Every kernel, not only the chosen one");
  command->add_flag("!--no-check", options->check, "Time without checking the results first");
  command->add_flag("--allow-skipped", options->allow_skipped,
                    "Exit with 0 even if nothing was timed of what --op, --case and --backend select");
  command->add_option("--json", options->json, "Write the results to this file");
  command->add_option("--suite", options->suite,
                      "Shapes on a GPU instead of the cases: prefill 'published', 'short' or 'widths', 'decode', "
                      "'experts', 'moe' or 'linear'");
  command->add_option("--types", options->types, "Weights of the suite 'experts', separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--csv", options->csv,
                      "Write the rows of a suite, or of --op conversation or grammar, to this file");
  command->add_option(
      "-m,--model", options->models,
      "Models of --op model, instead of synthetic ones, and of --op engine, conversation, grammar and draft");
  command->add_option("--device", options->device, "Where these models run: cpu, cuda or cuda:N")
      ->check(device_name())
      ->capture_default_str();
  add_rank_split(*command, options->rank_split);
  add_state_types(*command, options->state_types);
  add_batch_invariant(*command, options->batch_invariant);
  command
      ->add_option(
          "--prefill", options->prefills,
          "Tokens of --op model's prompts, separated by commas, 0 for none; if not given, 512,2048, and on a GPU "
          "also 8192,32768; for --op conversation the long one alone, if not given 30000")
      ->delimiter(',')
      ->check(whole_number(0, 1 << 24));
  command->add_option("--after", options->after, "On a GPU: tokens before --op model's prompts, which continue them")
      ->check(whole_number(0, 1 << 24));
  command
      ->add_option("--decode", options->decodes,
                   "On a GPU: sequences that decode together and tokens before, as in 8x512, separated by commas")
      ->delimiter(',')
      ->check(decode_row())
      ->capture_default_str();
  command->add_flag("--profile", options->profile, "The time of a step by operation");
  command->add_option("--gigabytes", options->gigabytes, "Size of the synthetic models of --op model")
      ->check(number(0.001, 1000.0))
      ->capture_default_str();
  add_force(*command, options->force);
  add_quiet(*command);
  command->callback([options, &exit_code] {
    for (const std::string& file : {options->json, options->csv}) {
      if (file.empty()) continue;
      check_not_read(file, options->models);
      check_output(file, options->force);
    }
    select_instruction_set(options->instruction_set);
    if (options->interleave) interleave_memory();
    const std::vector<std::string>& selected = options->selection.operations;
    const auto only = [&](const char* name) { return selected == std::vector<std::string>{name}; };
    exit_code = only("model")            ? bench_model(*options)
                : only("engine")         ? bench_engine(*options)
                : only("conversation")   ? bench_conversation(*options)
                : only("grammar")        ? bench_grammar(*options)
                : only("draft")          ? bench_draft(*options)
                : options->suite.empty() ? bench(*options)
                                         : bench_suite(*options);
  });
}

void add_operations(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("operations", "The operations and the backends that have them");
  auto markdown = std::make_shared<bool>(false);
  command->add_flag("--markdown", *markdown, "As the README's table");
  command->callback([markdown, &exit_code] { exit_code = print_operations(*markdown); });
}

void add_completion(CLI::App& app) {
  CLI::App* command = app.add_subcommand("completion", "A script that completes command lines in your shell");
  auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "For which one")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer("To use it at once in bash: source <(thalweg completion bash)");
  command->callback([&app, shell] {
    const std::vector<CommandEntry> tree = option_tree(app);
    print("{}", *shell == "bash"  ? bash_completion(tree)
                : *shell == "zsh" ? zsh_completion(tree)
                                  : fish_completion(tree));
    flush_output();
  });
}

// Hidden: for the build.
void add_manual(CLI::App& app) {
  CLI::App* command = app.add_subcommand("man", "Write the manual pages")->group("");
  auto folder = std::make_shared<std::string>();
  command->add_option("FOLDER", *folder, "Where to; made if need be")->required();
  command->callback([&app, folder] { write_manual_pages(option_tree(app), *folder); });
}

// What is wrong with the command line, and what helps.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  for (const CLI::App* parsed : app.get_subcommands()) command = parsed;
  const std::string name = command == &app ? "thalweg" : command->get_name();
  const std::string remedy = fmt::format("; `thalweg {}--help` lists the options", command == &app ? "" : name + " ");
  std::vector<std::string> extra = command->remaining();
  if (command != &app && extra.empty()) extra = app.remaining();
  for (const std::string& word : extra) {
    if (!word.starts_with('-')) continue;
    const std::string option = word.substr(0, word.find('='));
    std::string meant;
    for (const CommandEntry& entry : option_tree(app)) {
      if (entry.name == (command == &app ? "" : command->get_name())) meant = closest(option, option_names(entry));
    }
    return fmt::format("{} has no option {}{}{}", name, option, meant.empty() ? "" : ": did you mean " + meant + "?",
                       meant.empty() ? remedy : " " + remedy.substr(2));
  }
  if (!extra.empty()) return fmt::format("{} does not take the argument '{}'{}", name, extra.front(), remedy);
  return error.what() + remedy;
}

// Empty if the first word is an option, or a command.
std::string explain_unknown_command(const CLI::App& app, const std::string& word) {
  if (word.starts_with('-')) return {};
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == word) return {};
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  const std::string meant = closest(word, names);
  return fmt::format("no command is called '{}'{} `thalweg --help` lists the commands", word,
                     meant.empty() ? ";" : ": did you mean " + meant + "?");
}

// Letters as they are, whatever else a terminal might obey as \xNN.
std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return line;
}

int fail(const std::string& message) {
  note("thalweg: {}\n", one_line(message));
  return 2;
}

int run(int argc, char** argv) {
  CLI::App app{"Thalweg: text from hybrid language models, and the kernels that compute it", "thalweg"};
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every command");
  app.set_version_flag("--version", version_text, "Version, commit, compiler, instruction sets and backends");
  int exit_code = 0;

  add_generate(app, exit_code);
  add_chat(app, exit_code);
  add_serve(app, exit_code);
  add_inspect(app, exit_code);
  add_quantize(app, exit_code);
  add_perplexity(app, exit_code);
  add_eval(app, exit_code);
  add_synth(app, exit_code);
  add_verify(app, exit_code);
  add_bench(app, exit_code);
  add_operations(app, exit_code);
  add_completion(app);
  add_manual(app);

  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (words.empty()) words = {"--help"};
  const std::string unknown = explain_unknown_command(app, words.front());
  if (!unknown.empty()) return fail(unknown);
  // As users of llama.cpp write it; CLI11 has no long option with one dash.
  if (words.front() == "chat") std::replace(words.begin(), words.end(), std::string("-sys"), std::string("--system"));
  std::reverse(words.begin(), words.end());
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return fail(explain(app, error));
    app.exit(error);
    std::cout.flush();
    flush_output();
  }
  return exit_code;
}

// What the standard library reports in words of its own.
std::string describe(const std::exception& error) {
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    return fmt::format("{}: {}", file->path1().string(), file->code().message());
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      dynamic_cast<const std::length_error*>(&error) != nullptr) {
    return "not enough memory; a smaller model, --context or --batch needs less";
  }
  return error.what();
}

}  // namespace
}  // namespace thalweg::app

int main(int argc, char** argv) {
  using namespace thalweg::app;
  prepare_streams();
  handle_signals();
  try {
    thalweg::metal::attach_executor();
    const int exit_code = run(argc, argv);
    flush_output();
    return exit_code;
  } catch (const RankIsDone&) {
    return 0;
  } catch (const std::exception& error) {
    return fail(describe(error));
  }
}
