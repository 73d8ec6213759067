#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cases/case.h"
#include "state_types.h"
#include "thalweg/backend.h"
#include "thalweg/model.h"

namespace thalweg::app {

// The cases that a command works on; an empty field selects all.
struct Selection {
  std::vector<std::string> operations;
  std::string case_regex;
  std::string backend = "cpu";  // cpu, cuda, metal or all
};

struct VerifyOptions {
  Selection selection;
  std::uint64_t seed = 1;
  int threads = 0;
  int runs = 1;                // of every case by every kernel; they must leave the same bits
  bool allow_skipped = false;  // a selection of which nothing runs is no failure
  std::string json;
  bool force = false;  // replace it
};

struct BenchOptions {
  Selection selection;
  int threads = 0;
  bool interleave = false;      // --numa
  std::string instruction_set;  // of the CPU; empty: the best
  double seconds = 0.5;         // measured time per case, at least
  bool all_kernels = false;
  bool allow_skipped = false;  // cases of which nothing is timed are no failure
  std::string json;
  std::string suite;                                 // of shapes on a GPU (bench_suite.cc); empty: the cases
  std::string csv;                                   // of a suite, of bench_conversation and bench_grammar
  bool force = false;                                // replace these two
  bool check = true;                                 // compare results with the oracle before timing them
  std::vector<std::string> types = {"Q4_K", "F16"};  // of weights in the suite "experts"
  // Of bench_model, bench_engine, bench_conversation, bench_grammar and bench_draft:
  std::vector<std::string> models;     // empty: synthetic ones
  double gigabytes = 1.5;              // size of those
  double model_seconds = 10.0;         // measured time per model, at least
  std::string device = "cpu";          // that the models run on
  std::vector<std::int64_t> prefills;  // prompts, in tokens; empty: the device's default
  RankSplit rank_split = RankSplit::kTensor;
  StateTypes state_types;  // of bench_model
  std::int64_t after = 0;  // on a GPU, tokens that prompts of bench_model continue
  // On a GPU: decoding as sequences x tokens before it; the time of a step by operation.
  std::vector<std::string> decodes = {"1x512",  "1x32768", "8x512",   "32x512",
                                      "64x512", "128x512", "8x32000", "32x32000"};
  bool profile = false;
  bool batch_invariant = false;  // of bench_model
};

// A row of `bench --op model --device`: sequences that decode together, and the tokens before.
struct DecodeRow {
  std::int64_t sequences = 1;
  std::int64_t tokens = 0;
};
std::optional<DecodeRow> decode_row_of(std::string_view text);  // "8x512"

// Each returns the process's exit code.
int verify(const VerifyOptions& options);
int bench(const BenchOptions& options);
// `bench --suite`: one of those below, by the suite's name.
int bench_suite(const BenchOptions& options);
int bench_prefill(const BenchOptions& options, const BackendInfo& backend);
int bench_decode(const BenchOptions& options, const BackendInfo& backend);
int bench_experts(const BenchOptions& options, const BackendInfo& backend);
int bench_moe(const BenchOptions& options, const BackendInfo& backend);
int bench_linear(const BenchOptions& options, const BackendInfo& backend);
int bench_calls(const BenchOptions& options, const BackendInfo& backend);
// Decode speed of whole models against the memory bandwidth, and prompts: what `bench --op model` runs.
int bench_model(const BenchOptions& options);
// Many requests at once and the prefix cache: `bench --op engine`.
int bench_engine(const BenchOptions& options);
// What conversations compute with the prefix cache: `bench --op conversation`.
int bench_conversation(const BenchOptions& options);
// Schemas compiled, masks of a large vocabulary, decoding with and without: `bench --op grammar`.
int bench_grammar(const BenchOptions& options);
// Decoding with drafts against decoding without: `bench --op draft`.
int bench_draft(const BenchOptions& options);
// Its rows of rounds with drafts that are right with a known probability.
nlohmann::json bench_rounds(const BenchOptions& options, const std::string& path);
// The same with --device cuda: prefill and decode at several sizes, against what bytes and flops allow.
int bench_model_on_device(const BenchOptions& options);
int print_operations(bool markdown);

// The selected cases, in the table's order; throws std::runtime_error for an unknown operation.
std::vector<const cases::Case*> select_cases(const Selection& selection, bool for_bench);
std::vector<BackendInfo> select_backends(const Selection& selection);

}  // namespace thalweg::app
