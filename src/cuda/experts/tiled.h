#pragma once

// Products of many activation rows with block-format weights on tensor cores, for one matrix or for the experts' own:
// y[pair,:] = weight[expert of pair] x[row of pair,:]. What the kernels of sm90/ get, and how their work is cut.

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "cuda/experts/token_tiles.h"
#include "cuda/launch.h"
#include "thalweg/tensor.h"

namespace thalweg::cu {

// Of `pairs` rows over `experts` experts there are no more tiles than this.
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
  // Null tiles: one expert, whose rows are 0 .. num_rows - 1, cut every tile_tokens.
  const TokenTile* tiles;
  const std::int32_t* tile_count;
  const std::int32_t* rows;  // pairs by expert; null: begin + i is the pair
  int num_rows;
  int tile_tokens;
  bool few;  // most tiles have 64 rows or fewer; only of f16, and of formats that are never f16

  const std::uint16_t* x;  // [.,staged_columns(k)] staged, bf16 or f16
  const float* factors;    // of f16 rows: what their results are multiplied by; null: bf16
  int pairs_per_x_row;     // top_k where slots share their token's row, else 1

  WeightView weight;
  WeightView up;  // gated only: y = silu(weight x) * (up x), staged bf16 [pairs,staged_columns(n)]
  int n;
  int k;
  // Set at the launch.
  int period;         // so many rows are a multiple of 16 bytes, as the copy engine wants it; 0: it cannot read them
  int pitch;          // bytes from row to row of weights in shared memory
  int weight_stages;  // of as many rows as a tile has, there

  void* y;
  DType y_dtype;
  int slots;  // pair = token * slots + slot
  std::int64_t y_token_stride;
  std::int64_t y_slot_stride;
  const float* bias;  // [N] or null
};

// Why weight[N,K] or [E,N,K] cannot be multiplied by tiles on the device, or nothing.
std::string tiled_reason(const ConstTensor& weight, const DeviceProperties& device);
constexpr std::int64_t kMostTiledRows = std::int64_t{1} << 30;

// Whether weights of this format may be multiplied as f16; others, whose range f16 has not, only as bf16.
constexpr bool tiles_in_f16(DType weight) { return weight != DType::kBF16 && weight != DType::kMXFP4; }

// The weights, K and N of a product; the rest says that one expert's rows are in order.
TiledMatmul tiled_product(const ConstTensor& weight, const std::uint16_t* staged, const float* factors = nullptr);
WeightView weight_view(const ConstTensor& weight);

// Tokens per tile of one matrix with n rows: few enough that all multiprocessors have work, else as many as possible.
int choose_tile_tokens(std::int64_t tokens, std::int64_t n, int multiprocessors);

namespace sm90 {
bool tiles_take(DType weight);
void launch_tiled_matmul(const TiledMatmul& args, DType weight, bool gated, const DeviceProperties& device,
                         cudaStream_t stream, std::string_view operation);
}  // namespace sm90

}  // namespace thalweg::cu
