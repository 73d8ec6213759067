#include "cuda/experts/matvec_mxfp4.h"

#include <algorithm>

#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/matvec.h"
#include "cuda/experts/matvec_mxfp4_kernel.h"

namespace thalweg::cu {
namespace {

constexpr int kUsualTiles = 32;
constexpr std::int64_t kFewBytes = 8 << 20;  // of weights: the other kernel's blocks begin sooner

}  // namespace

bool mxfp4_matvec_takes(const ExpertMatmul& p, const DeviceProperties& device) {
  const bool together = p.n == 1 || p.row_bytes == p.k / 32 * kMxfp4Block;
  const std::int64_t bytes = std::int64_t{p.ids.pairs} * p.n * (p.k / 32) * kMxfp4Block;
  return device.bulk_copies && bytes > kFewBytes && p.k % (2 * kLevelSlice) == 0 && p.k <= kLevelWarps * kLevelSlice &&
         together && has_aligned_rows(p);
}

void run_mxfp4_matvec(const ExpertMatmul& p, const DeviceProperties& device, const Stream& stream,
                      std::string_view operation) {
  const int units = p.k / 32;
  LevelShape shape{};
  shape.columns = p.k / kLevelSlice;
  while (1 << shape.columns_log < shape.columns) ++shape.columns_log;
  shape.tile_rows = kLevelRows * kLevelWarps >> shape.columns_log;
  shape.row_bytes = units * kMxfp4Block;
  const int pieces = shape.row_bytes / 16;
  shape.run = pieces % 2 != 0 ? shape.tile_rows : (pieces % 4 != 0 ? 4 : (pieces % 8 != 0 ? 2 : 1));
  shape.run_bytes = shape.run * shape.row_bytes + (shape.run < 8 ? 16 : 0);
  shape.stage_bytes = shape.place_of(shape.tile_rows);
  const int tiles = ceil_of(p.n, shape.tile_rows);  // of a pair
  shape.tiles = std::min(parts_of_block(tiles, p.ids.pairs, device.multiprocessors, kUsualTiles), kUsualTiles);
  shape.results_at = kLevelBarriersBytes + static_cast<int>(sizeof(FixedUnit)) * units;
  const int results = shape.columns * shape.tiles * shape.tile_rows;
  shape.ring_at = (shape.results_at + static_cast<int>(sizeof(float)) * results + 127) / 128 * 128;
  const auto bytes = static_cast<std::size_t>(shape.ring_at + kLevelStages * shape.stage_bytes);
  allow_shared_memory(reinterpret_cast<const void*>(mxfp4_matvec_kernel), bytes, operation);
  const dim3 grid(static_cast<unsigned>(ceil_of(tiles, shape.tiles)), static_cast<unsigned>(p.ids.slots),
                  static_cast<unsigned>(p.ids.pairs / p.ids.slots));
  pdl_launch(mxfp4_matvec_kernel, grid, kLevelThreads, bytes, device, native(stream), operation, p, shape);
}

}  // namespace thalweg::cu
