#include <fmt/core.h>

#include <memory>
#include <string>

#include "convert/synthesize.h"
#include "model_commands.h"
#include "model_options.h"
#include "output_file.h"
#include "progress.h"
#include "streams.h"

namespace thalweg::app {
namespace {

struct Options {
  std::string out;
  std::string type = "Q4_K";
  bool force = false;
  convert::SynthOptions synth;
};

int synth(Options& options) {
  const convert::TypeMix mix = convert::type_mix(options.type);
  check_output(options.out, options.force);
  WorkBar bar("writing " + options.out);
  options.synth.progress = bar.listener();
  const convert::Synthesized done = convert::synthesize(options.out, mix, options.synth);
  bar.clear();
  print("{}: {} as {}, {} layers, hidden size {}\n", options.out, format_bytes(done.bytes), mix.name, done.layers,
        done.hidden);
  flush_output();
  return 0;
}

}  // namespace

void add_synth(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("synth", "Write a model of random weights, for measuring speed");
  auto options = std::make_shared<Options>();
  command->add_option("OUT", options->out, "The .gguf file to write")->required();
  command->add_option("--type", options->type, "Type of the matrices: one of `thalweg quantize`")
      ->capture_default_str();
  command->add_option("--gigabytes", options->synth.gigabytes, "Size of the weights, in 10^9 bytes")
      ->check(number(0.001, 1000.0))
      ->capture_default_str();
  command->add_flag("--experts", options->synth.experts, "A mixture of experts instead of dense layers");
  command->add_flag("!--no-tokenizer", options->synth.tokenizer, "A model that takes token ids only");
  command->add_option("-s,--seed", options->synth.seed, "Seed of the weights")
      ->check(seed_number())
      ->capture_default_str();
  add_quiet(*command);
  add_force(*command, options->force);
  command->callback([options, &exit_code] { exit_code = synth(*options); });
}

}  // namespace thalweg::app
