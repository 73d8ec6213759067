// The command line. The commands for models are in files of their own; those for kernels are declared here.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <fstream>
#include <random>
#include <regex>
#include <stdexcept>

#include "commands.h"
#include "interrupt.h"
#include "metal/host/attach.h"
#include "model_commands.h"
#include "streams.h"

namespace thalweg::app {

std::vector<const cases::Case*> select_cases(const Selection& selection, bool for_bench) {
  const std::regex pattern(selection.case_regex, std::regex::ECMAScript);
  const std::vector<std::string>& wanted = selection.operations;
  for (const std::string& name : wanted) {
    const auto named = [&](const cases::Case& candidate) { return candidate.operation == name; };
    if (std::none_of(cases::all_cases().begin(), cases::all_cases().end(), named)) {
      throw std::runtime_error("no operation is called '" + name + "'; `thalweg operations` lists them");
    }
  }
  std::vector<const cases::Case*> selected;
  for (const cases::Case& candidate : cases::all_cases()) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), candidate.operation) == wanted.end()) continue;
    if (!(for_bench ? candidate.bench : candidate.verify)) continue;
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

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

namespace {

void add_selection(CLI::App& command, Selection& selection) {
  command.add_option("--backend", selection.backend, "cpu, cuda, metal or all")
      ->check(CLI::IsMember({"cpu", "cuda", "metal", "all"}))
      ->capture_default_str();
  command.add_option("--op", selection.operations, "Only these operations, separated by commas")->delimiter(',');
  command.add_option("--case", selection.case_regex, "Only cases whose name this regular expression finds");
}

int run(int argc, char** argv) {
  CLI::App app{"Thalweg: text from hybrid language models, and the kernels that compute it"};
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every command");
  // One line that names the remedy.
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return fmt::format("thalweg: {}; --help lists the commands and options\n", error.what());
  });
  int exit_code = 0;

  add_generate(app, exit_code);
  add_chat(app, exit_code);
  add_inspect(app, exit_code);
  add_quantize(app, exit_code);
  add_perplexity(app, exit_code);
  add_eval(app, exit_code);
  add_synth(app, exit_code);

  VerifyOptions verify_options;
  std::string seed = "1";
  CLI::App* verify_command = app.add_subcommand("verify", "Check every kernel against the float64 oracles");
  add_selection(*verify_command, verify_options.selection);
  verify_command->add_option("--seed", seed, "Seed of the inputs: a number, or 'random'")->capture_default_str();
  verify_command->add_option("--threads", verify_options.threads, "Threads, 0 for all")->capture_default_str();
  verify_command->add_option("--runs", verify_options.runs, "Runs of each case; all must leave the same bits")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  verify_command->add_flag("--allow-skipped", verify_options.allow_skipped,
                           "Exit with 0 even if nothing ran of what --op, --case and --backend select");
  verify_command->add_option("--json", verify_options.json, "Write the results to this file");
  verify_command->callback([&] {
    verify_options.seed = seed == "random" ? std::random_device{}() : std::stoull(seed);
    exit_code = verify(verify_options);
  });

  BenchOptions bench_options;
  CLI::App* bench_command = app.add_subcommand(
      "bench", "Time the kernels, after checking what they compute; --op model: decoding of whole models");
  add_selection(*bench_command, bench_options.selection);
  bench_command->add_option("--threads", bench_options.threads, "Threads, 0 for all")->capture_default_str();
  bench_command->add_option("--seconds", bench_options.seconds, "Time to measure each case for")->capture_default_str();
  bench_command->add_flag("--all-kernels", bench_options.all_kernels, "Every kernel, not only the chosen one");
  bench_command->add_flag("!--no-check", bench_options.check, "Time without checking the results first");
  bench_command->add_option("--json", bench_options.json, "Write the results to this file");
  bench_command->add_option(
      "--suite", bench_options.suite,
      "Shapes on a GPU instead of the cases: prefill 'published', 'short' or 'widths', 'decode', 'experts' or 'moe'");
  bench_command->add_option("--types", bench_options.types, "Weights of the suite 'experts', separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  bench_command->add_option("--csv", bench_options.csv, "Write a suite's rows to this file");
  bench_command->add_option("-m,--model", bench_options.models, "Models of --op model, instead of synthetic ones");
  bench_command->add_option("--gigabytes", bench_options.gigabytes, "Size of the synthetic models of --op model")
      ->check(CLI::Range(0.001, 1000.0))
      ->capture_default_str();
  bench_command->callback([&] {
    const bool whole_models = bench_options.selection.operations == std::vector<std::string>{"model"};
    exit_code = whole_models                  ? bench_model(bench_options)
                : bench_options.suite.empty() ? bench(bench_options)
                                              : bench_suite(bench_options);
  });

  bool markdown = false;
  CLI::App* operations_command = app.add_subcommand("operations", "The operations and the backends that have them");
  operations_command->add_flag("--markdown", markdown, "As the README's table");
  operations_command->callback([&] { exit_code = print_operations(markdown); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return exit_code;
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
  } catch (const std::exception& error) {
    note("thalweg: {}\n", error.what());
    return 2;
  }
}
