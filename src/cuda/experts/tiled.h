#pragma once

// The tiled matmuls of Hopper: products of many rows of activations with the weights of one matrix or of the experts,
// y[pair,:] = weight[expert of pair] x[row of pair,:]. Their parameters, and what limits them.

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "cuda/experts/token_tiles.h"
#include "cuda/launch.h"
#include "thalweg/tensor.h"

namespace thalweg::cu {

// The most tiles of `pairs` rows over `experts` experts.
constexpr std::int64_t most_tiles(std::int64_t experts, std::int64_t pairs) {
  return (experts < pairs ? experts : pairs) + pairs / kTileTokens;
}

// One matrix [N,K] per expert, in bytes.
struct WeightView {
  const std::uint8_t* data;
  std::int64_t expert_stride;
  std::int64_t row_stride;
  std::int64_t experts;
};

struct TiledMatmul {
  // Null: one expert with rows 0 .. num_rows - 1, in tiles of tile_tokens.
  const TokenTile* tiles;
  const std::int32_t* tile_count;
  const std::int32_t* rows;  // pairs by expert; null: begin + i is the pair
  int num_rows;
  int tile_tokens;
  bool few;  // most tiles have 64 rows or fewer; false if an f16 format is multiplied as bf16
  // Blocks, a cluster, that share the columns of a tile, so that few tiles keep all multiprocessors busy. More than one
  // only for one matrix, in tiles of at most 64 tokens; then each cluster has one tile.
  int tile_blocks;

  const std::uint16_t* x;  // [.,staged_columns(k)] staged, bf16 or f16
  const float* factors;    // of the results of each row of x; null: x is bf16
  int pairs_per_x_row;     // top_k if slots share their token's row, else 1

  WeightView weight;
  WeightView up;  // gated only: y = silu(weight x) * (up x), staged bf16 [pairs,staged_columns(n)]
  int n;
  int k;
  // Set at the launch:
  int period;         // rows that are a multiple of 16 bytes together; 0: no tensor map can describe them
  int pitch;          // bytes between rows of weights in shared memory
  int weight_stages;  // of a tile's weight rows, in shared memory
  bool y_fours;       // four 16-bit results can be stored at once

  void* y;
  DType y_dtype;
  int slots;  // pair = token * slots + slot
  std::int64_t y_token_stride;
  std::int64_t y_slot_stride;
  const float* bias;  // [N] or null
};

// Empty, or why weight[N,K] or [E,N,K] cannot be multiplied by tiles on the device.
std::string tiled_reason(const ConstTensor& weight, const DeviceProperties& device);
constexpr std::int64_t kMostTiledRows = std::int64_t{1} << 30;

// Whether weights of this format may be multiplied as f16; the range of the others does not fit.
constexpr bool tiles_in_f16(DType weight) { return weight != DType::kBF16 && weight != DType::kMXFP4; }

// A product with one expert's rows in order; sets weights, K and N.
TiledMatmul tiled_product(const ConstTensor& weight, const std::uint16_t* staged, const float* factors = nullptr);
WeightView weight_view(const ConstTensor& weight);

// Tokens per tile of one matrix with n rows: as many as leave work for all multiprocessors.
int choose_tile_tokens(std::int64_t tokens, std::int64_t n, int multiprocessors);
// How the tiles of one matrix's product with `tokens` rows of activations keep all multiprocessors busy: tokens per
// tile, and blocks that share the columns of one.
struct TileDivision {
  int tokens;
  int blocks;
  bool few;  // tiles of TiledMatmul::few
};
TileDivision divide_tiles(const ConstTensor& weight, std::int64_t tokens, const DeviceProperties& device);

namespace sm90 {
bool tiles_take(DType weight);
void launch_tiled_matmul(const TiledMatmul& args, DType weight, bool gated, const DeviceProperties& device,
                         cudaStream_t stream, std::string_view operation);
}  // namespace sm90

}  // namespace thalweg::cu
