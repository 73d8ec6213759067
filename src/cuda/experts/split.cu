#include "cuda/experts/split.h"

#include <algorithm>

#include "cuda/common/warp.h"
#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/formats/dispatch.h"
#include "cuda/experts/split_products.h"
#include "cuda/launch.h"
#include "cuda/row_hint.h"

namespace thalweg::cu {
namespace {

constexpr std::int64_t kMostColumnBlocks = 65535;  // gridDim.y
constexpr int kFewWarps = 8;

constexpr int kMostColumns = 32;

SplitKernel kernel_for(const ConstTensor& weight, std::int64_t rows) {
  const int columns = rows <= 8 ? 8 : (rows <= 16 ? 16 : kMostColumns);
  const bool aligned = aligned_rows(weight).empty();
  return dispatch_block_format(weight.dtype, [&]<DType kType>() -> SplitKernel {
    if constexpr (kType != DType::kMXFP4) return split_kernel<kType>(columns, aligned);
    return {};
  });
}

struct SplitLaunch {
  SplitShape shape{};
  int warps = 0;
  std::size_t shared_bytes = 0;
};

// As many warps as K tiles, or half of them with two stages each, as far as shared memory reaches; at most most_warps.
SplitLaunch launch_of(const SplitKernel& kernel, int most_warps, int k, const DeviceProperties& device) {
  SplitLaunch launch;
  launch.shape.k_tiles = (k + kSplitTileK - 1) / kSplitTileK;
  launch.shape.stages = 1;
  const auto fits = [&](int warps, int stages) {
    return warps * stages * kernel.stage_bytes <= device.shared_bytes - 1024;
  };
  launch.warps = std::clamp(launch.shape.k_tiles, 1, most_warps);
  if (launch.warps > kFewWarps && !fits(launch.warps, 1)) launch.warps = kFewWarps;
  if (launch.shape.k_tiles > launch.warps && launch.warps > kFewWarps) launch.warps = kFewWarps;
  if (launch.shape.k_tiles > launch.warps && fits(launch.warps, 2)) launch.shape.stages = 2;
  while (!fits(launch.warps, 1)) launch.warps /= 2;
  const int sums_bytes = kernel.columns * (kernel.rows + kSplitSumsPadding) * static_cast<int>(sizeof(float));
  launch.shared_bytes = static_cast<std::size_t>(launch.warps) *
                        static_cast<std::size_t>(std::max(launch.shape.stages * kernel.stage_bytes, sums_bytes));
  return launch;
}

}  // namespace

std::string split_supports(const ConstTensor& weight, std::int64_t rows) {
  if (!is_block_format(weight.dtype) || weight.dtype == DType::kMXFP4) return "takes weights in blocks, and not MXFP4";
  if (const std::string reason = aligned_blocks(weight); !reason.empty()) return reason;
  const SplitKernel kernel = kernel_for(weight, rows);
  if (kernel.kernel == nullptr) return aligned_rows(weight);
  return rows <= kMostColumnBlocks * kernel.columns ? "" : "takes fewer rows";
}

void run_split(const ExpertMatmul& p, const ConstTensor& x, const ConstTensor& weight, const Stream& stream,
               std::string_view operation) {
  const int rows = p.ids.pairs;
  if (rows == 0 || p.n == 0) return;
  const DeviceProperties& device = properties(stream.device.index);
  const SplitKernel kernel = kernel_for(weight, rows);
  int most_warps = kernel.most_warps;
  if (is_hinted(stream)) {  // the warps that divide the columns do not depend on the rows
    const SplitKernel widest = kernel_for(weight, kMostColumns);
    most_warps = launch_of(widest, widest.most_warps, p.k, device).warps;
  }
  SplitLaunch launch = launch_of(kernel, most_warps, p.k, device);
  launch.shape.copies_x = x.dtype == DType::kBF16 && rows_aligned_to(x, 16);
  if (launch.shared_bytes > 48 * 1024) {
    allow_shared_memory(reinterpret_cast<const void*>(kernel.kernel), launch.shared_bytes, operation);
  }
  const dim3 grid(static_cast<unsigned>((p.n + kernel.rows - 1) / kernel.rows),
                  static_cast<unsigned>((rows + kernel.columns - 1) / kernel.columns));
  pdl_launch(kernel.kernel, grid, static_cast<unsigned>(launch.warps * kWarpSize), launch.shared_bytes, device,
             native(stream), operation, p, launch.shape);
}

}  // namespace thalweg::cu
