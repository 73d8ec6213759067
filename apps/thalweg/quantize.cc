#include <fmt/core.h>

#include <memory>
#include <string>

#include "convert/convert.h"
#include "io/model_files.h"
#include "model_commands.h"
#include "model_options.h"
#include "output_file.h"
#include "progress.h"
#include "streams.h"

namespace thalweg::app {
namespace {

struct Options {
  std::string in;
  std::string out;
  std::string type;
  int threads = 0;
  bool force = false;
};

int quantize(const Options& options) {
  const convert::TypeMix mix = convert::type_mix(options.type);
  check_not_read(options.out, io::model_files(options.in));
  check_output(options.out, options.force);
  WorkBar bar("writing " + options.out);
  convert::ConvertOptions convert_options;
  convert_options.threads = options.threads;
  convert_options.progress = bar.listener();
  const convert::Converted done = convert::convert_model(options.in, options.out, mix, convert_options);
  bar.clear();
  for (const std::string& line : done.notes) note("note: {}\n", line);
  print("{}: {}, {} tensors, {} as {}; the source has {}\n", options.out, done.architecture, done.tensors,
        format_bytes(done.bytes), mix.name, format_bytes(done.source_bytes));
  flush_output();
  return 0;
}

}  // namespace

void add_quantize(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("quantize", "Convert a model to GGUF and pack its weights");
  auto options = std::make_shared<Options>();
  std::string types;
  for (const std::string& name : convert::type_mix_names()) types += (types.empty() ? "" : ",") + name;
  command->add_option("IN", options->in, "A .gguf file, or a Hugging Face directory")->required();
  command->add_option("OUT", options->out, "The .gguf file to write")->required();
  command->add_option("TYPE", options->type, "Of the matrices, or a mix")->required()->type_name("{" + types + "}");
  add_threads(*command, options->threads);
  add_force(*command, options->force);
  add_quiet(*command);
  command->footer(
      "Q4_K_M and Q5_K_M are mixes: more bits where errors cost most. Vectors, norms and routers stay F32.");
  command->callback([options, &exit_code] { exit_code = quantize(*options); });
}

}  // namespace thalweg::app
