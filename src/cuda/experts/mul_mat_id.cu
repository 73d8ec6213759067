// mul_mat_id, mul_mm_id, mul_mv_id and linear: the lists of their kernels, and the costs that decide among these.

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "cuda/experts/exact.h"
#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/expert_tiles.h"
#include "cuda/experts/linear_cublas.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/row_hint.h"
#include "cuda/tuning.h"

namespace thalweg::cu {
namespace {

using tuning::experts::Load;
using tuning::experts::LoadCosts;

template <class Args>
constexpr bool kIsLinear = std::is_same_v<Args, LinearArgs>;

// The pairs of token and slot; of linear, the rows.
template <class Args>
std::int64_t pairs_of(const Args& args) {
  if constexpr (kIsLinear<Args>) {
    return args.x.dim(0);
  } else {
    return args.expert_ids.size();
  }
}

// ---- costs

std::int64_t tiled_pairs_per_expert(DType weight) {
  if (weight == DType::kQ6_K) return tuning::experts::kTiledPairsPerExpertQ6K;
  return is_block_format(weight) ? tuning::experts::kTiledPairsPerExpert : tuning::experts::kTiledPairsPerExpertPlain;
}

template <class Args>
std::int64_t planned_pairs(const Args& args, const Stream& stream) {
  if constexpr (kIsLinear<Args>) {
    return planned_rows(args.x.dim(0), stream);
  } else {
    return planned_rows(args.expert_ids.dim(0), stream) * args.expert_ids.dim(1);
  }
}

template <class Args>
Load load_of(const Args& args, const Stream& stream) {
  using namespace tuning::experts;
  const std::int64_t pairs = planned_pairs(args, stream);
  std::int64_t few = kMatvecRows;
  std::int64_t many = kTiledRows;
  if constexpr (!kIsLinear<Args>) {
    few = kMatvecPairs;
    many = std::max(tiled_pairs_per_expert(args.weight.dtype) * args.weight.dim(0), few + 1);
  }
  return pairs <= few ? Load::kFew : (pairs < many ? Load::kSome : Load::kMany);
}

struct MatmulCosts {
  LoadCosts matvec;
  LoadCosts matvec_mxfp4;
  LoadCosts stream;
  LoadCosts tiles;
};

template <class Args>
constexpr MatmulCosts costs() {
  if constexpr (kIsLinear<Args>) {
    using namespace tuning::experts::linear;
    return {kMatvec, kMatvecMxfp4, kStream, kTiles};
  } else if constexpr (std::is_same_v<Args, MulMmIdArgs>) {
    using namespace tuning::experts::mul_mm_id;
    return {kMatvec, kMatvecMxfp4, kStream, kTiles};
  } else {
    using namespace tuning::experts::mul_mat_id;
    return {kMatvec, kMatvecMxfp4, kStream, kTiles};
  }
}

// linear with weights in blocks: a tile is 32 rows by 256 columns.
double cost_of(const tuning::experts::linear::BlockCosts& costs, const ConstTensor& weight, double repeated = 1.0) {
  constexpr double kFew = tuning::experts::linear::kFewTiles;
  const double tiles = static_cast<double>(weight.dim(0)) / 32.0 * static_cast<double>(weight.dim(1)) / 256.0;
  return costs.call + costs.column * static_cast<double>(weight.dim(1)) +
         repeated * (costs.tile * std::min(tiles, kFew) + costs.later_tile * std::max(tiles - kFew, 0.0));
}
double groups_of(std::int64_t rows, std::int64_t most) { return static_cast<double>((rows + most - 1) / most); }

enum class BlockKernel { kMatvec, kBytes, kSplit, kStream, kTiles };
template <BlockKernel kKernel>
double block_cost(const LinearArgs& args, const Stream& stream) {
  using namespace tuning::experts::linear;
  const std::int64_t rows = planned_rows(args.x.dim(0), stream);
  switch (kKernel) {
    case BlockKernel::kMatvec:
      return cost_of(kMatvecBlocks, args.weight, static_cast<double>(rows));
    case BlockKernel::kBytes:
      return cost_of(kBytesBlocks, args.weight);
    case BlockKernel::kSplit: {
      const double groups = groups_of(rows, 32);
      const bool at_once = groups * static_cast<double>(args.weight.dim(0)) / 32.0 <= kSplitBlocksAtOnce;
      return cost_of(kSplitBlocks[rows <= 8 ? 0 : (rows <= 16 ? 1 : 2)], args.weight, at_once ? 1.0 : groups);
    }
    case BlockKernel::kStream:
      return cost_of(kStreamBlocks[rows <= 16 ? 0 : 1], args.weight, groups_of(rows, 32));
    case BlockKernel::kTiles:
      if (const int blocks = divide_tiles(args.weight, rows, properties(stream.device.index)).blocks; blocks > 1) {
        const auto columns = static_cast<double>(args.weight.dim(1));
        return kSharedTileCall + kSharedTileColumn * columns + kSharedTileStage * std::ceil(columns / 256.0 / blocks) +
               kSharedTileRow * static_cast<double>(std::min(rows, kSharedTileRows)) +
               kTileRow * static_cast<double>(std::clamp(rows - kSharedTileRows, std::int64_t{0}, kTileRows));
      }
      return cost_of(kTileBlocks, args.weight) + kTileRow * static_cast<double>(std::min(rows, kTileRows));
  }
  return 0.0;
}

template <class Args, LoadCosts MatmulCosts::*kKernel, BlockKernel kBlockKernel>
double cost(const Args& args, const Stream& stream) {
  if constexpr (kIsLinear<Args>) {
    if (is_block_format(args.weight.dtype)) return block_cost<kBlockKernel>(args, stream);
  }
  return (costs<Args>().*kKernel).at(load_of(args, stream));
}

// matvec_mxfp4, of one format: its order among the others is that of matvec, which it is a little faster than.
template <class Args>
double cost_mxfp4(const Args& args, const Stream& stream) {
  const MatmulCosts all = costs<Args>();
  const Load load = load_of(args, stream);
  const double matvec = cost<Args, &MatmulCosts::matvec, BlockKernel::kMatvec>(args, stream);
  return cost_by_count(matvec * all.matvec_mxfp4.at(load) / all.matvec.at(load), stream);
}

// ---- matvec, matvec_mxfp4: a product of matrix and vector for each pair

template <class Args>
std::string supports_matvec(const Args& args, const Stream&) {
  return matvec_supports(args.weight, pairs_of(args));
}
template <class Args>
void run_matvec(const Args& args, Workspace, const Stream& stream) {
  const CurrentDevice current(stream, args.kName);
  run_matvec(expert_matmul(args), args.weight, stream, args.kName);
}
template <class Args>
std::string remark_matvec(const Args& args) {
  return is_block_format(args.weight.dtype) ? "rounds activations to 15 bits of the largest of 32" : "";
}
template <class Args>
constexpr Kernel<Args> kMatvec{.name = "matvec",
                               .supports = supports_matvec<Args>,
                               .workspace = no_workspace<Args>,
                               .run = run_matvec<Args>,
                               .remark = remark_matvec<Args>,
                               .arithmetic = Arithmetic::k16Bit,
                               .cost = cost<Args, &MatmulCosts::matvec, BlockKernel::kMatvec>};

template <class Args>
std::string supports_matvec_mxfp4(const Args& args, const Stream& stream) {
  return matvec_mxfp4_supports(args.weight, pairs_of(args), properties(stream.device.index));
}
template <class Args>
void run_matvec_mxfp4(const Args& args, Workspace, const Stream& stream) {
  const CurrentDevice current(stream, args.kName);
  run_matvec_mxfp4(expert_matmul(args), stream, args.kName);
}
template <class Args>
constexpr Kernel<Args> kMatvecMxfp4{.name = "matvec_mxfp4",
                                    .supports = supports_matvec_mxfp4<Args>,
                                    .workspace = no_workspace<Args>,
                                    .run = run_matvec_mxfp4<Args>,
                                    .remark = remark_matvec<Args>,
                                    .arithmetic = Arithmetic::k16Bit,
                                    .cost = cost_mxfp4<Args>};

// ---- stream: a few rows of each expert

template <class Args>
std::string supports_stream(const Args& args, const Stream&) {
  return stream_supports(args.weight, pairs_of(args));
}
template <class Args>
std::size_t workspace_stream(const Args& args, const Stream&) {
  return stream_workspace(args.x, args.weight, pairs_of(args));
}
template <class Args>
void run_stream(const Args& args, Workspace workspace, const Stream& stream) {
  const CurrentDevice current(stream, args.kName);
  run_stream(expert_matmul(args), args.x, args.weight, workspace, stream, args.kName);
}
template <class Args>
double cost_stream(const Args& args, const Stream& stream) {
  return cost_by_count(cost<Args, &MatmulCosts::stream, BlockKernel::kStream>(args, stream), stream);
}
template <class Args>
std::string remark_stream(const Args& args) {
  return stream_rounding(args.weight, pairs_of(args));
}
template <class Args>
constexpr Kernel<Args> kStream{.name = "stream",
                               .supports = supports_stream<Args>,
                               .workspace = workspace_stream<Args>,
                               .run = run_stream<Args>,
                               .remark = remark_stream<Args>,
                               .arithmetic = Arithmetic::k16Bit,
                               .cost = cost_stream<Args>};

// ---- wgmma: tiles of many rows

template <class Args>
std::string supports_tiles(const Args& args, const Stream& stream) {
  if constexpr (kIsLinear<Args>) {
    return linear_tiles_supports(args, stream);
  } else {
    return expert_tiles_supports(args, stream);
  }
}
template <class Args>
std::size_t workspace_tiles(const Args& args, const Stream&) {
  if constexpr (kIsLinear<Args>) {
    return linear_tiles_workspace(args);
  } else {
    return expert_tiles_workspace(args);
  }
}
template <class Args>
void run_tiles(const Args& args, Workspace workspace, const Stream& stream) {
  if constexpr (kIsLinear<Args>) {
    run_linear_tiles(args, workspace, stream);
  } else {
    run_expert_tiles(args, workspace, stream, args.kName);
  }
}
template <class Args>
std::string remark_tiles(const Args& args) {
  return tiles_in_f16(args.weight.dtype) ? "rounds activations and weights to f16, each row of activations scaled"
                                         : "rounds activations and weights to bf16";
}
template <class Args>
constexpr Kernel<Args> kTiles{.name = "wgmma",
                              .supports = supports_tiles<Args>,
                              .workspace = workspace_tiles<Args>,
                              .run = run_tiles<Args>,
                              .remark = remark_tiles<Args>,
                              .arithmetic = Arithmetic::k16Bit,
                              .cost = cost<Args, &MatmulCosts::tiles, BlockKernel::kTiles>};

// ---- cublas: dense BF16

std::size_t workspace_cublas(const LinearArgs& args, const Stream&) { return linear_cublas_workspace(args); }
std::string remark_cublas(const LinearArgs& args) {
  return args.x.dtype == DType::kBF16 ? "" : "rounds activations to bf16";
}
double cost_cublas(const LinearArgs& args, const Stream& stream) {
  return cost_by_count(tuning::experts::linear::kCublas.at(load_of(args, stream)), stream);
}

constexpr Kernel<LinearArgs> kCublas{.name = "cublas",
                                     .supports = linear_cublas_supports,
                                     .workspace = workspace_cublas,
                                     .run = run_linear_cublas,
                                     .remark = remark_cublas,
                                     .arithmetic = Arithmetic::k16Bit,
                                     .cost = cost_cublas};

// ---- bytes: a row of linear

std::string supports_bytes(const LinearArgs& args, const Stream& stream) {
  return bytes_supports(args.weight, args.x.dim(0), properties(stream.device.index));
}
std::size_t workspace_bytes(const LinearArgs& args, const Stream&) { return bytes_workspace(args.x.dim(1)); }
void run_bytes(const LinearArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, LinearArgs::kName);
  write_row_records(args.x, workspace, stream, LinearArgs::kName);
  run_bytes(expert_matmul(args), args.weight, workspace, stream, LinearArgs::kName);
}
std::string remark_bytes(const LinearArgs&) { return "rounds activations to 15 bits of the largest of 256"; }
double cost_bytes(const LinearArgs& args, const Stream& stream) {
  return cost_by_count(block_cost<BlockKernel::kBytes>(args, stream), stream);
}

constexpr Kernel<LinearArgs> kBytes{.name = "bytes",
                                    .supports = supports_bytes,
                                    .workspace = workspace_bytes,
                                    .run = run_bytes,
                                    .remark = remark_bytes,
                                    .arithmetic = Arithmetic::k16Bit,
                                    .cost = cost_bytes};

// ---- split: a few rows of linear

std::string supports_split(const LinearArgs& args, const Stream&) { return split_supports(args.weight, args.x.dim(0)); }
void run_split(const LinearArgs& args, Workspace, const Stream& stream) {
  const CurrentDevice current(stream, LinearArgs::kName);
  run_split(expert_matmul(args), args.x, args.weight, stream, LinearArgs::kName);
}
std::string remark_split(const LinearArgs& args) {
  return args.x.dtype == DType::kBF16 ? "" : "rounds activations to bf16";
}
double cost_split(const LinearArgs& args, const Stream& stream) {
  return block_cost<BlockKernel::kSplit>(args, stream);
}

constexpr Kernel<LinearArgs> kSplit{.name = "split",
                                    .supports = supports_split,
                                    .workspace = no_workspace<LinearArgs>,
                                    .run = run_split,
                                    .remark = remark_split,
                                    .arithmetic = Arithmetic::k16Bit,
                                    .cost = cost_split};

// ---- exact: f32, for MatmulPrecision::kExact

template <class Args>
std::string supports_exact(const Args& args, const Stream&) {
  return exact_supports(args.weight);
}
template <class Args>
void run_exact(const Args& args, Workspace, const Stream& stream) {
  const CurrentDevice current(stream, args.kName);
  run_exact(expert_matmul(args), args.weight.dtype, stream, args.kName);
}
template <class Args>
double cost_exact(const Args&, const Stream&) {
  return tuning::experts::kExact;
}
template <class Args>
constexpr Kernel<Args> kExact{.name = "exact",
                              .supports = supports_exact<Args>,
                              .workspace = no_workspace<Args>,
                              .run = run_exact<Args>,
                              .cost = cost_exact<Args>};

// ---- the lists

constexpr Kernel<MulMvIdArgs> kMv[] = {kMatvec<MulMvIdArgs>, kMatvecMxfp4<MulMvIdArgs>, kExact<MulMvIdArgs>};
template <class Args>
constexpr Kernel<Args> kGrouped[] = {kMatvec<Args>, kMatvecMxfp4<Args>, kStream<Args>, kTiles<Args>, kExact<Args>};
constexpr Kernel<LinearArgs> kLinear[] = {
    kMatvec<LinearArgs>, kMatvecMxfp4<LinearArgs>, kBytes, kSplit, kCublas, kStream<LinearArgs>,
    kTiles<LinearArgs>,  kExact<LinearArgs>};

}  // namespace

KernelList<MulMmIdArgs> mul_mm_id_kernels() { return kGrouped<MulMmIdArgs>; }
KernelList<MulMvIdArgs> mul_mv_id_kernels() { return kMv; }
KernelList<MulMatIdArgs> mul_mat_id_kernels() { return kGrouped<MulMatIdArgs>; }
KernelList<LinearArgs> linear_kernels() { return kLinear; }

}  // namespace thalweg::cu
