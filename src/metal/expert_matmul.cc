// The expert-indexed matmuls. For many rows, a first launch lists each expert's rows and tiles, and an indirect second
// launch computes exactly those tiles: only the device knows their number.

#include <algorithm>

#include "core/arena.h"
#include "metal/kernels.h"
#include "metal/layers.h"
#include "metal/tuning.h"

namespace thalweg::metal {
namespace {

// The dtypes' numbers in kernels/formats.h and kernels/common.h.
static_assert(static_cast<int>(DType::kF32) == 0 && static_cast<int>(DType::kF16) == 1 &&
              static_cast<int>(DType::kBF16) == 2 && static_cast<int>(DType::kQ4_0) == 4 &&
              static_cast<int>(DType::kQ8_0) == 8 && static_cast<int>(DType::kQ2_K) == 9 &&
              static_cast<int>(DType::kQ6_K) == 13 && static_cast<int>(DType::kMXFP4) == 16);

// The lists in the workspace.
struct Lists {
  std::int64_t pairs;
  std::int64_t experts;
  std::int64_t num_tiles;  // at most
  std::int32_t* offsets;   // [experts + 1]
  std::int32_t* rows;      // [pairs]
  RowTile* tiles;          // [num_tiles]
  std::uint32_t* grid;     // [3], of the launch that takes the tiles

  Lists(std::int64_t pairs_, std::int64_t experts_, Arena& arena)
      : pairs(pairs_),
        experts(experts_),
        num_tiles(std::min(pairs, pairs / kRowsOfTile + experts)),
        offsets(arena.take<std::int32_t>(experts + 1)),
        rows(arena.take<std::int32_t>(pairs)),
        tiles(arena.take<RowTile>(num_tiles)),
        grid(arena.take<std::uint32_t>(3)) {}
};

Launch rows_launch(const ConstTensor& ids, std::int64_t experts, ExpertRowsParameters& p) {
  p.pairs = static_cast<std::int32_t>(ids.size());
  p.slots = static_cast<std::int32_t>(std::max<std::int64_t>(ids.dim(1), 1));
  p.experts = static_cast<std::int32_t>(experts);
  p.threads_per_expert = static_cast<std::int32_t>(std::max<std::int64_t>(kRowsThreads / experts, 1));
  p.ids_token = ids.stride(0);
  Launch launch;
  launch.kernel = "expert_rows";
  launch.set(p).add(ids);
  launch.threads = kRowsThreads;
  const std::int64_t words = kCachedIds / 2 + experts + 1 + p.threads_per_expert * experts + experts;
  launch.threadgroup_bytes = static_cast<std::size_t>((words + 3) / 4 * 4) * sizeof(std::int32_t);
  return launch;
}

bool lists_fit(std::int64_t experts) {
  return kCachedIds / 2 + 2 * experts + 1 + std::max<std::int64_t>(kRowsThreads, experts) <= 32768 / 4;
}

constexpr std::string_view kTooManyExperts = "needs lists of all experts in 32 KB of threadgroup memory";

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

ExpertMatmulParameters parameters_of(const ExpertMatmulArgs& args) {
  const bool per_slot = args.x.rank == 3;
  ExpertMatmulParameters p{};
  p.slots = static_cast<std::int32_t>(args.expert_ids.dim(1));
  p.n = static_cast<std::int32_t>(args.weight.dim(1));
  p.k = static_cast<std::int32_t>(args.weight.dim(2));
  p.experts = static_cast<std::int32_t>(args.weight.dim(0));
  p.weight_expert = bytes_of(args.weight.dtype, args.weight.stride(0));
  p.weight_row = bytes_of(args.weight.dtype, args.weight.stride(1));
  p.x_token = args.x.stride(0);
  p.x_slot = per_slot ? args.x.stride(1) : 0;
  p.y_token = args.y.stride(0);
  p.y_slot = args.y.stride(1);
  p.ids_token = args.expert_ids.stride(0);
  return p;
}

void add_constants(Launch& launch, const ExpertMatmulArgs& args) {
  launch.constant("kType", args.x.dtype).constant("kOutType", args.y.dtype).constant("kFormat", args.weight.dtype);
  launch.constant("kPerSlot", args.x.rank == 3);
}

std::string supports_mm(const ExpertMatmulArgs& args) {
  return lists_fit(args.weight.dim(0)) ? "" : std::string(kTooManyExperts);
}

std::size_t workspace_mm(const ExpertMatmulArgs& args) {
  Arena arena;
  const Lists counted(args.expert_ids.size(), args.weight.dim(0), arena);
  return arena.used();
}

void run_mm(std::string_view operation, const ExpertMatmulArgs& args, const Workspace& memory, const Stream& stream) {
  if (args.y.size() == 0) return;
  Arena arena(memory);
  const Lists lists(args.expert_ids.size(), args.weight.dim(0), arena);
  ExpertRowsParameters p{};
  Launch launch = rows_launch(args.expert_ids, lists.experts, p);
  p.column_blocks = static_cast<std::int32_t>(ceil_div(args.weight.dim(1), kColumnsOfTile));
  const Buffer rows = buffer_of(lists.rows, lists.pairs);
  const Buffer tiles = buffer_of(lists.tiles, lists.num_tiles);
  launch.add(buffer_of(lists.offsets, lists.experts + 1)).add(rows).add(tiles).add(buffer_of(lists.grid, 3));
  launch.constant("kListsTiles", 1);
  const ExpertMatmulParameters q = parameters_of(args);
  Launch product;
  product.kernel = "mul_mm_id";
  product.set(q).add(args.weight).add(args.x).add(rows).add(tiles).add(args.y);
  add_constants(product, args);
  product.threads = 128;
  product.threadgroup_bytes = (kColumnsOfTile + kRowsOfTile) * kDepthOfTile * sizeof(float);
  product.indirect_grid = lists.grid;
  product.after_previous = true;
  const auto encoder = make_encoder(operation, stream);
  encoder->launch(launch);
  encoder->launch(product);
}

void run_mv(std::string_view operation, const ExpertMatmulArgs& args, const Stream& stream) {
  const ExpertMatmulParameters p = parameters_of(args);
  Launch launch;
  launch.kernel = "mul_mv_id";
  launch.set(p).add(args.weight).add(args.x).add(args.expert_ids).add(args.y);
  add_constants(launch, args);
  launch.threads = 128;
  launch.grid = {ceil_div(p.n, kColumnsOfVector), static_cast<std::uint32_t>(args.expert_ids.size()), 1};
  make_encoder(operation, stream)->launch(launch);
}

template <class Args>
constexpr Kernel<Args> kTiles = {
    "tiles", [](const Args& args, const Stream&) { return supports_mm(args); },
    [](const Args& args, const Stream&) { return workspace_mm(args); },
    [](const Args& args, Workspace memory, const Stream& stream) { run_mm(Args::kName, args, memory, stream); }};

template <class Args>
void run_vector(const Args& args, Workspace, const Stream& stream) {
  run_mv(Args::kName, args, stream);
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
