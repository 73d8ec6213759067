#pragma once

#include <CLI/CLI.hpp>

namespace thalweg::app {

// Each adds one command, which sets the process's exit code when it runs: 0, 1 for a result that says no, 2 for an
// error.
void add_generate(CLI::App& app, int& exit_code);
void add_chat(CLI::App& app, int& exit_code);
void add_serve(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_quantize(CLI::App& app, int& exit_code);
void add_perplexity(CLI::App& app, int& exit_code);
void add_eval(CLI::App& app, int& exit_code);
void add_synth(CLI::App& app, int& exit_code);

}  // namespace thalweg::app
