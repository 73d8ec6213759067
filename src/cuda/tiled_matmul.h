#pragma once

// Products of many activation rows with block-format weights on tensor cores, for one matrix or for the experts' own:
// y[pair,:] = weight[expert of pair] x[row of pair,:]. What the kernels of sm90/ get, and how their work is cut.

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "cuda/launch.h"
#include "thalweg/tensor.h"

namespace thalweg::cu {

// Rows of one expert that go through the tensor cores together: rows[begin .. begin + count).
struct TokenTile {
  std::int32_t expert;
  std::int32_t begin;
  std::int32_t count;
  std::int32_t unused;
};
constexpr int kTileTokens = 256;  // the most
// An expert's rows are cut into tiles of kTileTokens and a rest; these bounds divide tiles by their cost.
constexpr int kTileClasses[] = {256, 192, 128, 96, 64, 32};
__host__ __device__ constexpr int tile_class(int count) {
  return count > 192 ? 0 : count > 128 ? 1 : count > 96 ? 2 : count > 64 ? 3 : count > 32 ? 4 : 5;
}
// Of `pairs` rows over `experts` experts there are no more tiles than this.
constexpr std::int64_t most_tiles(std::int64_t experts, std::int64_t pairs) {
  return (experts < pairs ? experts : pairs) + pairs / kTileTokens;
}

// Activations are staged as bf16 rows of whole runs of 128, in the order in which a lane of the tensor cores holds 32
// neighbouring weights: within a run, 16 s + 8 j + 2 q + i is k = 32 q + 4 s + 2 j + i (s < 8, j < 2, q < 4, i < 2).
constexpr int kStagedRun = 128;
constexpr std::int64_t staged_columns(std::int64_t k) { return (k + kStagedRun - 1) / kStagedRun * kStagedRun; }
__host__ __device__ constexpr int staged_place(int k) {
  return k / kStagedRun * kStagedRun + k % 32 / 4 * 16 + k % 4 / 2 * 8 + k % kStagedRun / 32 * 2 + k % 2;
}

// One matrix [N,K] per expert, in bytes.
struct WeightView {
  const std::uint8_t* data;
  std::int64_t expert_stride;
  std::int64_t row_stride;
};

struct TiledMatmul {
  // Null tiles: one expert, whose rows are 0 .. num_rows - 1, cut every tile_tokens.
  const TokenTile* tiles;
  const std::int32_t* tile_count;
  const std::int32_t* rows;  // pairs by expert; null: begin + i is the pair
  int num_rows;
  int tile_tokens;

  const std::uint16_t* x;  // [.,staged_columns(k)] staged bf16
  int pairs_per_x_row;     // top_k where slots share their token's row, else 1

  WeightView weight;
  WeightView up;  // gated only: y = silu(weight x) * (up x), staged bf16 [pairs,staged_columns(n)]
  int n;
  int k;

  void* y;
  DType y_dtype;
  int slots;  // pair = token * slots + slot
  std::int64_t y_token_stride;
  std::int64_t y_slot_stride;
  const float* bias;  // [N] or null
};

// Cuts the rows of each expert into tiles, the costly ones first, and stages the activations. Either may be absent.
struct PrepareTiles {
  const std::int32_t* expert_offsets;  // [experts+1], null: no tiles
  int experts;
  TokenTile* tiles;
  std::int32_t* tile_count;

  const void* x;  // [rows / inner, inner, k], null: nothing to stage
  DType x_dtype;
  std::int64_t rows;
  std::int64_t inner;
  std::int64_t outer_stride;  // elements
  std::int64_t inner_stride;
  int k;
  std::uint16_t* staged;
};
void launch_prepare_tiles(const PrepareTiles& args, const DeviceProperties& device, cudaStream_t stream,
                          std::string_view operation);

// x[T,K] or x[T,S,K], staged row by row.
void set_activations(PrepareTiles& prepare, const ConstTensor& x, std::uint16_t* staged);
void stage_activations(const ConstTensor& x, std::uint16_t* staged, const DeviceProperties& device, cudaStream_t stream,
                       std::string_view operation);

// Why weight[N,K] or [E,N,K] cannot be multiplied by tiles on the device, or nothing.
std::string tiled_reason(const ConstTensor& weight, const DeviceProperties& device);
constexpr std::int64_t kMostTiledRows = std::int64_t{1} << 30;

// The weights, K and N of a product; the rest says that one expert's rows are in order.
TiledMatmul tiled_product(const ConstTensor& weight, const std::uint16_t* staged);
WeightView weight_view(const ConstTensor& weight);

// Tokens per tile of one matrix with n rows: few enough that all multiprocessors have work, else as many as possible.
int choose_tile_tokens(std::int64_t tokens, std::int64_t n, int multiprocessors);

namespace sm90 {
bool tiles_take(DType weight);
void launch_tiled_matmul(const TiledMatmul& args, DType weight, bool gated, const DeviceProperties& device,
                         cudaStream_t stream, std::string_view operation);
}  // namespace sm90

}  // namespace thalweg::cu
