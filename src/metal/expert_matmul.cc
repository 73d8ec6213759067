// The expert-indexed matmuls. For many rows, a first launch lists each expert's rows and tiles, and an indirect second
// launch computes exactly those tiles: only the device knows their number.

#include <algorithm>

#include "metal/expert_launches.h"
#include "metal/kernels.h"
#include "metal/tuning.h"

namespace thalweg::metal {
namespace {

std::string supports_rows(const ExpertRowsArgs& args, const Stream&) {
  return lists_fit(args.expert_offsets.dim(0) - 1) ? "" : std::string(kTooManyExperts);
}

void run_rows(const ExpertRowsArgs& args, Workspace, const Stream& stream) {
  ExpertRowsParameters p{};
  Launch launch = rows_launch(args.expert_ids, args.expert_offsets.dim(0) - 1, p);
  launch.add(args.expert_offsets).add(args.rows).add(nullptr, 0).add(nullptr, 0);
  launch.constant("kListsTiles", 0);
  make_encoder(args.kName, stream)->launch(launch);
}

std::string supports_mm(const ExpertMatmulArgs& args) {
  return lists_fit(args.weight.dim(0)) ? "" : std::string(kTooManyExperts);
}

std::size_t workspace_mm(const ExpertMatmulArgs& args) {
  Arena arena;
  const ExpertLists counted(args.expert_ids.size(), args.weight.dim(0), arena);
  return arena.used();
}

void run_mm(std::string_view operation, const ExpertMatmulArgs& args, const Workspace& memory, const Stream& stream) {
  if (args.y.size() == 0) return;
  Arena arena(memory);
  const ExpertLists lists(args.expert_ids.size(), args.weight.dim(0), arena);
  ExpertRowsParameters p{};
  ExpertMatmulParameters q{};
  const auto encoder = make_encoder(operation, stream);
  encoder->launch(lists_launch(args.expert_ids, args.weight.dim(1), lists, p));
  encoder->launch(expert_tiles_launch(args, {}, lists, q));
}

template <class Args>
constexpr Kernel<Args> kTiles = {
    "tiles", [](const Args& args, const Stream&) { return supports_mm(args); },
    [](const Args& args, const Stream&) { return workspace_mm(args); },
    [](const Args& args, Workspace memory, const Stream& stream) { run_mm(Args::kName, args, memory, stream); }};

template <class Args>
void run_vector(const Args& args, Workspace, const Stream& stream) {
  ExpertMatmulParameters p{};
  make_encoder(Args::kName, stream)->launch(expert_vectors_launch(args, {}, p));
}

double matrix_bytes(const ExpertMatmulArgs& args) {
  return static_cast<double>(bytes_of(args.weight.dtype, args.weight.dim(1) * args.weight.dim(2)));
}

// The tiles of an expert read its weights once per kRowsOfTile rows, the vector kernel once per row. No host code sees
// the ids, so that every expert counts as hit.
double tiles_cost(const MulMatIdArgs& args, const Stream&) {
  const std::int64_t tiles = (args.expert_ids.size() + kRowsOfTile - 1) / kRowsOfTile;
  return static_cast<double>(std::max(args.weight.dim(0), tiles)) * matrix_bytes(args) / tuning::kBytesPerMicrosecond;
}
double vector_cost(const MulMatIdArgs& args, const Stream&) {
  return static_cast<double>(args.expert_ids.size()) * matrix_bytes(args) / tuning::kBytesPerMicrosecond;
}

constexpr Kernel<ExpertRowsArgs> kRows[] = {{"counting", supports_rows, no_workspace<ExpertRowsArgs>, run_rows}};
constexpr Kernel<MulMmIdArgs> kMm[] = {kTiles<MulMmIdArgs>};
constexpr Kernel<MulMvIdArgs> kMv[] = {
    {"simdgroup_rows", always_supported<MulMvIdArgs>, no_workspace<MulMvIdArgs>, run_vector<MulMvIdArgs>}};
// The first of equal costs runs: the vector kernel needs no lists.
constexpr Kernel<MulMatIdArgs> kMat[] = {{.name = "mv",
                                          .supports = always_supported<MulMatIdArgs>,
                                          .workspace = no_workspace<MulMatIdArgs>,
                                          .run = run_vector<MulMatIdArgs>,
                                          .cost = vector_cost},
                                         {.name = "mm",
                                          .supports = kTiles<MulMatIdArgs>.supports,
                                          .workspace = kTiles<MulMatIdArgs>.workspace,
                                          .run = kTiles<MulMatIdArgs>.run,
                                          .cost = tiles_cost}};

}  // namespace

void add_expert_kernels(Backend& backend) {
  std::get<KernelList<ExpertRowsArgs>>(backend.kernels) = kRows;
  std::get<KernelList<MulMmIdArgs>>(backend.kernels) = kMm;
  std::get<KernelList<MulMvIdArgs>>(backend.kernels) = kMv;
  std::get<KernelList<MulMatIdArgs>>(backend.kernels) = kMat;
}

}  // namespace thalweg::metal
