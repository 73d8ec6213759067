// Host side of the tiled matmuls: what they support, and the tiles of one matrix.

#include "cuda/experts/tiled.h"

#include <algorithm>

namespace thalweg::cu {
namespace {

// The alignment that follows from the size of blocks, which are contiguous.
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

namespace {
std::int64_t tiles_of(std::int64_t tokens, int tile_tokens, std::int64_t n, int tile_rows) {
  return (tokens + tile_tokens - 1) / tile_tokens * ((n + tile_rows - 1) / tile_rows);
}
}  // namespace

int choose_tile_tokens(std::int64_t tokens, std::int64_t n, int multiprocessors) {
  // Cycles for 64 columns: four per token on the tensor cores, but no less than unpacking takes.
  const auto cost = [&](int tile) {
    return (tiles_of(tokens, tile, n, 128) + multiprocessors - 1) / multiprocessors * std::max(4 * tile, 350);
  };
  int best = kTileTokens;
  for (const int tile : kTileClasses) {
    if (cost(tile) < cost(best)) best = tile;
  }
  return best;
}

TileDivision divide_tiles(const ConstTensor& weight, std::int64_t tokens, const DeviceProperties& device) {
  const std::int64_t n = weight.dim(0);
  // A block unpacks one stage of columns after the other, however few its tokens are. More than eight blocks to a
  // cluster are not portable.
  const int clusters[][2] = {{8, device.clusters_of_8}, {4, device.clusters_of_4}, {2, device.clusters_of_2}};
  TileDivision shared{tokens <= 32 ? 32 : 64, 1, false};
  const std::int64_t stages = (weight.dim(1) + 255) / 256;
  for (const bool few : {false, true}) {
    if (few && !tiles_in_f16(weight.dtype)) continue;
    const std::int64_t tiles = tiles_of(tokens, shared.tokens, n, few ? 192 : 128);
    for (const auto& [blocks, resident] : clusters) {
      if (blocks > shared.blocks && blocks <= stages && tiles <= resident) shared = {shared.tokens, blocks, few};
    }
  }
  if (shared.blocks > 1) return shared;
  return {choose_tile_tokens(tokens, n, device.multiprocessors), 1, false};
}

}  // namespace thalweg::cu
