// Launches of linear.

#include "metal/expert_launches.h"
#include "metal/kernels.h"
#include "metal/tuning.h"

namespace thalweg::metal {
namespace {

template <const char* kKernel>
void run(const LinearArgs& args, Workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  LinearParameters p{};
  make_encoder(args.kName, stream)->launch(linear_launch(kKernel, args, {}, p));
}

// How often the weights are read.
double cost(const LinearArgs& args, std::int64_t rows) {
  const double passes = static_cast<double>(ceil_div(args.x.dim(0), rows));
  return passes * static_cast<double>(bytes_of(args.weight.dtype, args.weight.size())) / tuning::kBytesPerMicrosecond;
}

double rows_cost(const LinearArgs& args, const Stream& stream) {
  return stream.rows == RowHint::kMany ? tuning::kAgainstHint : cost(args, kVectorTokens);
}
double tiles_cost(const LinearArgs& args, const Stream& stream) {
  return stream.rows == RowHint::kFew ? tuning::kAgainstHint : cost(args, kRowsOfTile);
}

constexpr char kRowsKernel[] = "linear_rows";
constexpr char kTilesKernel[] = "linear_tiles";

// The first of equal costs runs: few rows leave most of a tile empty.
constexpr Kernel<LinearArgs> kLinear[] = {{.name = "simdgroup_rows",
                                           .supports = always_supported<LinearArgs>,
                                           .workspace = no_workspace<LinearArgs>,
                                           .run = run<kRowsKernel>,
                                           .cost = rows_cost},
                                          {.name = "tiles",
                                           .supports = always_supported<LinearArgs>,
                                           .workspace = no_workspace<LinearArgs>,
                                           .run = run<kTilesKernel>,
                                           .cost = tiles_cost}};

}  // namespace

KernelList<LinearArgs> linear_kernels() { return kLinear; }

}  // namespace thalweg::metal
