// Host side of the tiled matmuls: what they can take, and how one matrix is cut.

#include "cuda/experts/tiled.h"

#include <algorithm>

namespace thalweg::cu {
namespace {

// Blocks lie one after the other, so their size says what their addresses are multiples of.
int natural_alignment(DType dtype) {
  if (!is_block_format(dtype)) return 16;
  const int bytes = dtype_info(dtype).block_bytes;
  return std::min(bytes & -bytes, 16);
}

}  // namespace

std::string tiled_reason(const ConstTensor& weight, const DeviceProperties& device) {
  const std::string reason = sm90_reason(device);
  if (!reason.empty()) return reason;
  if (!sm90::tiles_take(weight.dtype)) return "has no tiles of " + std::string(dtype_name(weight.dtype)) + " weights";
  const int alignment = natural_alignment(weight.dtype);
  if (!rows_aligned_to(weight, alignment)) {
    return "takes rows of weights aligned to " + std::to_string(alignment) + " bytes";
  }
  constexpr std::int64_t kMost = 1 << 30;
  if (weight.dim(weight.rank - 2) > kMost || weight.dim(weight.rank - 1) > kMost || weight.dim(0) > kMost) {
    return "takes at most 2^30 rows and columns";
  }
  return {};
}

WeightView weight_view(const ConstTensor& weight) {
  return {static_cast<const std::uint8_t*>(weight.data),
          weight.rank == 3 ? bytes_of(weight.dtype, weight.stride(0)) : 0,
          bytes_of(weight.dtype, weight.stride(weight.rank - 2)), weight.rank == 3 ? weight.dim(0) : 1};
}

TiledMatmul tiled_product(const ConstTensor& weight, const std::uint16_t* staged, const float* factors) {
  TiledMatmul result{};
  result.x = staged;
  result.factors = factors;
  result.pairs_per_x_row = 1;
  result.weight = weight_view(weight);
  result.n = static_cast<int>(weight.dim(weight.rank - 2));
  result.k = static_cast<int>(weight.dim(weight.rank - 1));
  result.slots = 1;
  return result;
}

int choose_tile_tokens(std::int64_t tokens, std::int64_t n, int multiprocessors) {
  // Cycles of 64 columns: four per token on the tensor cores, but no less than unpacking takes.
  const auto cost = [&](int tile) {
    const std::int64_t tiles = (tokens + tile - 1) / tile * ((n + 127) / 128);
    return (tiles + multiprocessors - 1) / multiprocessors * std::max(4 * tile, 350);
  };
  int best = kTileTokens;
  for (const int tile : kTileClasses) {
    if (cost(tile) < cost(best)) best = tile;
  }
  return best;
}

}  // namespace thalweg::cu
