#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common_options.h"
#include "state_types.h"
#include "thalweg/model.h"

namespace thalweg::app {

// The options of every command that runs a model.
struct LoadOptions {
  std::optional<std::string> path;  // none: not on the command line
  int threads = 0;
  std::int64_t context = 0;
  bool exact = false;
  bool batch_invariant = false;
  std::string device = "auto";  // auto, cpu, cuda, cuda:N, metal
  StateTypes types;
  bool interleave = false;   // --numa
  double comm_timeout = 30;  // seconds, of ranks
  RankSplit rank_split = RankSplit::kTensor;
  DraftMode draft = DraftMode::kOff;
  int draft_max = ModelOptions().draft_max;
};

// Thrown by load_model() on a rank above 0, when rank 0 is done with the model: the process ends well.
struct RankIsDone {};

// Whether this process is rank 0, or the only one: the one that prints, and writes files.
bool is_first_rank();
int rank_count();
// Null for a process alone, and before load_model().
std::shared_ptr<Ranks> command_ranks();

// As device_from_name(); of several ranks, "cuda" is the GPU that is this rank's on its machine.
std::optional<Device> rank_device(const std::string& name);

void add_load_options(CLI::App& command, LoadOptions& options);
void add_state_types(CLI::App& command, StateTypes& types);
void add_batch_invariant(CLI::App& command, bool& invariant);

// Of commands that generate text.
void add_rank_split(CLI::App& command, RankSplit& split);
void add_draft_options(CLI::App& command, LoadOptions& options);

// A device's name (device_from_name).
CLI::Validator device_name();

// The model as FILE or with -m.
void add_model_file(CLI::App& command, std::optional<std::string>& path);
// What the command line names, or THALWEG_MODEL; throws where neither names a model.
std::string model_file(const std::optional<std::string>& path);

// With a progress bar. Joins the other ranks, if mpirun, torchrun or srun started several; on a rank above 0 it follows
// rank 0, and throws RankIsDone in the end.
Model load_model(const LoadOptions& options, int sequences = 1);

// Throws for a model without a tokenizer, for commands that read or write text.
void require_tokenizer(const Model& model);

// Draws a seed, which --seed replaces.
void add_sampling_options(CLI::App& command, Sampling& sampling);

// "12.3 GB", "4.56 MB".
std::string format_bytes(std::uint64_t bytes);

// "prefill 34 tokens, 512.3 tokens/s; decode 16 tokens, 40.1 tokens/s".
std::string describe_speed(const Generated& generated);

// "; seed 7", or nothing where no token is drawn.
std::string describe_seed(const Sampling& sampling);

// Of a text or a set of questions: far more than any context, and far less than a device without an end.
inline constexpr std::size_t kMostTextBytes = std::size_t{256} << 20;

// A whole file, or stdin for "-". Throws if it has more than kMostTextBytes.
std::string read_text(const std::string& path);

}  // namespace thalweg::app
