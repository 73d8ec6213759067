#include "model_options.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <stdexcept>
#include <thread>

#include "interrupt.h"
#include "memory_nodes.h"
#include "progress.h"
#include "streams.h"
#include "terminal.h"
#include "thalweg/backend.h"
#include "thalweg/error.h"

namespace thalweg::app {

void add_model_file(CLI::App& command, std::optional<std::string>& path) {
  const auto take = [&path](const std::string& given) { path = given; };
  CLI::Option* file = command.add_option_function<std::string>(
      "FILE", take, "The model: a .gguf file, or a Hugging Face directory; without it, what THALWEG_MODEL names");
  command.add_option_function<std::string>("-m,--model", take, "The same")->excludes(file);
}

std::string model_file(const std::optional<std::string>& path) {
  constexpr const char* kRemedy = "give a .gguf file or a Hugging Face directory";
  if (path) {
    if (path->empty())
      throw std::runtime_error(fmt::format("the name after -m (--model), or FILE, is empty: {}", kRemedy));
    return *path;
  }
  const char* variable = std::getenv("THALWEG_MODEL");
  if (variable != nullptr && *variable != '\0') return variable;
  throw std::runtime_error(
      fmt::format("no model: there is no argument FILE, no -m (--model), and the variable "
                  "THALWEG_MODEL is {}; {} in one of these ways",
                  variable == nullptr ? "not set" : "empty", kRemedy));
}

CLI::Validator device_name() {
  return CLI::Validator(
      [](std::string& text) {
        try {
          device_from_name(text);
          return std::string();
        } catch (const Error& error) {
          return std::string(error.what());
        }
      },
      "DEVICE", "device");
}

namespace {

// Of a name in lower case.
DType dtype_of(const std::string& name) {
  if (name == "q8_0") return DType::kQ8_0;
  return name == "f32" ? DType::kF32 : name == "bf16" ? DType::kBF16 : DType::kF16;
}

// Says so where the host stands in for a device.
void note_stand_in(Device device) {
  for (const BackendInfo& info : backends()) {
    if (info.type != device.type || info.note.empty()) continue;
    note("{}: {}, each access of its kernels checked, and so hundreds of times slower than the CPU\n",
         device_type_name(info.type), info.note);
  }
}

}  // namespace

void StateTypes::set(ModelOptions& options) const {
  if (!kv.empty()) options.kv_dtype = dtype_of(kv);
  options.state_dtype = dtype_of(state);
}

void add_state_types(CLI::App& command, StateTypes& types) {
  command
      .add_option("--kv-type", types.kv,
                  "Type of keys and values in memory; default f16, with --exact f32; q8_0: 8 bits, 32 to a scale")
      ->check(CLI::IsMember({"f16", "bf16", "f32", "q8_0"}));
  command.add_option("--state-type", types.state, "Type of the recurrent states in memory")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
}

void add_batch_invariant(CLI::App& command, bool& invariant) {
  command.add_flag("--batch-invariant", invariant,
                   "On a GPU too, no bit of a text's results depends on the texts beside it: slower");
}

void add_load_options(CLI::App& command, LoadOptions& options) {
  add_model_file(command, options.path);
  add_threads(command, options.threads);
  command
      .add_option("-c,--context,--ctx-size", options.context,
                  "Most tokens of a text, 0 for what the model was made for, at most 32768")
      ->check(whole_number(0, kMostCount))
      ->capture_default_str();
  command.add_flag("--exact", options.exact, "Do not round activations to 8 bits for packed weights: slower");
  add_batch_invariant(command, options.batch_invariant);
  add_state_types(command, options.types);
  add_numa(command, options.interleave);
  command
      .add_option(
          "--device", options.device,
          "Where the model runs: cpu, cuda, cuda:N for the GPU of that number, metal, or auto for a GPU that the "
          "model fits on and else the CPU; of several ranks, each takes the GPU of its number on the machine")
      ->check(device_name())
      ->capture_default_str();
  command
      .add_option("--comm-timeout", options.comm_timeout,
                  "Of several ranks (mpirun, torchrun, srun): seconds after which one that is silent is given up")
      ->check(number(0.1, 86400.0))
      ->capture_default_str();
  add_rank_split(command, options.rank_split);
  add_quiet(command);
}

void add_rank_split(CLI::App& command, RankSplit& split) {
  command
      .add_option_function<std::string>(
          "--rank-split",
          [&split](const std::string& name) { split = name == "sequence" ? RankSplit::kSequence : RankSplit::kTensor; },
          "What each of several ranks has: tensor for some heads and experts of every layer, sequence for the whole "
          "model and its share of long prompts")
      ->check(CLI::IsMember({"tensor", "sequence"}))
      ->default_str("tensor");
}

void add_draft_options(CLI::App& command, LoadOptions& options) {
  const auto names = std::map<std::string, DraftMode>{
      {"off", DraftMode::kOff}, {"lookup", DraftMode::kLookup}, {"mtp", DraftMode::kMtp}, {"auto", DraftMode::kAuto}};
  command
      .add_option_function<std::string>(
          "--draft", [&options, names](const std::string& name) { options.draft = names.at(name); },
          "Guess tokens and verify several in one run, for the same text sooner: lookup in the text so far, mtp by the "
          "model's own layer for it, auto for as many as pay, or off")
      ->check(CLI::IsMember({"off", "lookup", "mtp", "auto"}))
      ->default_str("off");
  command.add_option("--draft-max", options.draft_max, "Most tokens that are guessed for one run")
      ->check(whole_number(1, 64))
      ->capture_default_str();
}

namespace {

// The connections of this process, which last until it ends.
std::shared_ptr<Ranks>& process_ranks() {
  static std::shared_ptr<Ranks> ranks;
  return ranks;
}

// Ranks of one machine share its processors; where the launcher has bound them to some, they have those.
int threads_of_rank(const RankOptions& ranks) {
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  const int share = std::max(1, static_cast<int>(online) / std::max(1, ranks.on_this_host));
  return std::min(share, std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
}

}  // namespace

bool is_first_rank() { return ranks_from_environment().rank == 0; }
int rank_count() { return ranks_from_environment().count; }
std::shared_ptr<Ranks> command_ranks() { return process_ranks(); }

std::optional<Device> rank_device(const std::string& name) {
  std::optional<Device> device = device_from_name(name);
  const RankOptions ranks = ranks_from_environment();
  if (ranks.count > 1 && name == "cuda") device->index = ranks.local_rank;
  return device;
}

Model load_model(const LoadOptions& options, int sequences) {
  const std::string path = model_file(options.path);
  RankOptions ranks = ranks_from_environment();
  ranks.timeout_seconds = options.comm_timeout;
  if (options.interleave) interleave_memory();  // before the first thread
  if (ranks.count > 1 && process_ranks() == nullptr) process_ranks() = Ranks::connect(ranks);
  if (ranks.rank > 0) be_quiet();
  WorkBar bar("loading " + path);
  ModelOptions model_options;
  model_options.threads = options.threads;
  model_options.context = options.context;
  model_options.sequences = sequences;
  model_options.exact = options.exact;
  model_options.batch_invariant = options.batch_invariant;
  model_options.device = rank_device(options.device);
  options.types.set(model_options);
  model_options.draft = options.draft;
  model_options.draft_max = options.draft_max;
  model_options.progress = bar.listener();
  model_options.ranks = process_ranks();
  model_options.rank_split = options.rank_split;
  if (ranks.count > 1 && options.threads == 0) model_options.threads = threads_of_rank(ranks);
  if (ranks.rank > 0) {
    // Launchers send their signals to all ranks: rank 0 decides what becomes of them.
    const InterruptWatch ignored;
    Model::load(path, model_options).follow();
    throw RankIsDone();
  }
  Model model = Model::load(path, model_options);
  if (!quiet() && model_options.device) note_stand_in(*model_options.device);
  if (!quiet() && !model.info().device_reason.empty()) note("on the CPU: {}\n", model.info().device_reason);
  return model;
}

void require_tokenizer(const Model& model) {
  if (model.info().has_tokenizer) return;
  throw std::runtime_error(model.info().path +
                           " has no tokenizer, so it cannot read or write text: give token ids with `thalweg generate "
                           "--token-ids 1,2,3`");
}

void add_sampling_options(CLI::App& command, Sampling& sampling) {
  command.add_option("--temp,--temperature", sampling.temperature, "Temperature; 0 takes the likeliest token")
      ->check(number(0.0, 100.0))
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Draw from this many tokens, 0 for all")
      ->check(whole_number(0, kMostCount))
      ->capture_default_str();
  command.add_option("--top-p", sampling.top_p, "Draw from the likeliest tokens that have this probability together")
      ->check(number(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--min-p", sampling.min_p, "Drop tokens below this fraction of the likeliest token's probability")
      ->check(number(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--repeat-penalty", sampling.repeat_penalty, "Make tokens of the last 64 less likely; 1 for off")
      ->check(number(0.01, 100.0))
      ->capture_default_str();
  sampling.seed = std::random_device()();
  command
      .add_option("-s,--seed", sampling.seed,
                  "The same seed gives the same text; without it one is drawn, and printed with the timings")
      ->check(seed_number());
}

std::string format_bytes(std::uint64_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (size >= 1e9) return fmt::format("{:.2f} GB", size * 1e-9);
  if (size >= 1e6) return fmt::format("{:.2f} MB", size * 1e-6);
  if (size >= 1e3) return fmt::format("{:.1f} kB", size * 1e-3);
  return fmt::format("{} bytes", bytes);
}

std::string describe_speed(const Generated& generated) {
  const auto phase = [](const char* name, std::int64_t tokens, double seconds) {
    const double rate = seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
    return fmt::format("{} {} tokens, {:.1f} tokens/s", name, tokens, rate);
  };
  return phase("prefill", generated.prompt_tokens, generated.prefill_seconds) + "; " +
         phase("decode", generated.steps, generated.decode_seconds) +
         (generated.drafts == 0 ? ""
                                : fmt::format(" in {} runs, {} of {} drafts right", generated.runs,
                                              generated.drafts_accepted, generated.drafts));
}

std::string describe_seed(const Sampling& sampling) {
  return sampling.temperature > 0 ? fmt::format("; seed {}", sampling.seed) : "";
}

std::string read_text(const std::string& path) {
  const bool from_stdin = path == "-";
  const std::string name = from_stdin ? "stdin" : path.empty() ? "''" : path;
  const auto refuse = [&](const std::string& why) {
    return std::runtime_error(fmt::format("cannot read {}: {}; give a text file", name, why));
  };
  std::error_code ignored;
  // Opening a folder succeeds; reading from it fails with words of the library's own.
  if (!from_stdin && std::filesystem::is_directory(path, ignored)) throw refuse("it is a folder");
  std::FILE* file = from_stdin ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) throw refuse(std::strerror(errno));
  std::string text;
  char block[1 << 16];
  for (std::size_t got = 0; (got = std::fread(block, 1, sizeof block, file)) > 0;) {
    text.append(block, got);
    if (text.size() > kMostTextBytes) throw refuse(fmt::format("it has more than {} bytes", kMostTextBytes));
  }
  const int error = std::ferror(file) != 0 ? errno : 0;
  if (!from_stdin) std::fclose(file);
  if (error != 0) throw refuse(std::strerror(error));
  return text;
}

}  // namespace thalweg::app
