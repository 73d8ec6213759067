// Host side of `matvec_mxfp4`.

#include <algorithm>

#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/matvec.h"
#include "cuda/experts/matvec_mxfp4_kernel.h"
#include "cuda/launch.h"
#include "cuda/tuning.h"

namespace thalweg::cu {
namespace {

constexpr int kUsualTiles = 32;

}  // namespace

std::string matvec_mxfp4_supports(const ConstTensor& weight, std::int64_t pairs, const DeviceProperties& device) {
  if (weight.dtype != DType::kMXFP4) return "takes MXFP4 weights";
  if (!device.bulk_copies) return "needs a device with bulk copies";
  if (std::string reason = matvec_supports(weight, pairs); !reason.empty()) return reason;
  const std::int64_t n = weight.dim(weight.rank - 2);
  const std::int64_t k = weight.dim(weight.rank - 1);
  constexpr std::int64_t kMostK = kLevelWarps * kLevelSlice;
  if (k % (2 * kLevelSlice) != 0 || k > kMostK) {
    return "takes multiples of " + std::to_string(2 * kLevelSlice) + " up to " + std::to_string(kMostK) + " as K";
  }
  if (n > 1 && weight.stride(weight.rank - 2) != k) return "takes contiguous rows";
  if (std::string reason = aligned_rows(weight); !reason.empty()) return reason;
  if (pairs * bytes_of(weight.dtype, n * k) <= tuning::experts::kMatvecMxfp4Bytes) {
    return "takes more than " + std::to_string(tuning::experts::kMatvecMxfp4Bytes) + " bytes of weights";
  }
  return {};
}

void run_matvec_mxfp4(const ExpertMatmul& p, const Stream& stream, std::string_view operation) {
  if (p.ids.pairs == 0 || p.n == 0) return;
  const DeviceProperties& device = properties(stream.device.index);
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
