#include <fmt/core.h>

#include <memory>
#include <string>

#include "convert/published_shapes.h"
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
  std::string type;
  bool force = false;
  convert::SynthOptions synth;
};

int synth(Options& options) {
  if (options.type.empty()) options.type = options.synth.like.empty() ? "Q4_K" : "Q4_K_M";
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
      ->default_str("Q4_K, with --like Q4_K_M");
  CLI::Option* gigabytes =
      command->add_option("--gigabytes", options->synth.gigabytes, "Size of the weights, in 10^9 bytes")
          ->check(number(0.001, 1000.0))
          ->capture_default_str();
  CLI::Option* experts =
      command->add_flag("--experts", options->synth.experts, "A mixture of experts instead of dense layers");
  CLI::Option* like = command->add_option("--like", options->synth.like, "The shapes of a published model")
                          ->check(CLI::IsMember(convert::published_models()))
                          ->excludes(gigabytes)
                          ->excludes(experts);
  command->add_option("--layers", options->synth.layers, "Only so many layers of --like, a multiple of 4")
      ->check(whole_number(4, 1000))
      ->needs(like);
  command->add_flag("--mtp", options->synth.mtp, "With a layer that guesses tokens (MTP)");
  command->add_flag("!--no-tokenizer", options->synth.tokenizer, "A model that takes token ids only");
  command->add_option("-s,--seed", options->synth.seed, "Seed of the weights")
      ->check(seed_number())
      ->capture_default_str();
  add_quiet(*command);
  add_force(*command, options->force);
  command->callback([options, &exit_code] { exit_code = synth(*options); });
}

}  // namespace thalweg::app
