#pragma once

// moe_ffn's `grouped`: an expert's weights are read once for up to eight of its tokens and multiplied as bytes on the
// tensor cores (byte_products.h). Five launches: the router's logits and the activations in fixed point
// (grouped_router.cu); the choice and the items (grouped_choice.cu); gate, up and SwiGLU, then down (grouped_kernel.h);
// the sum over slots. The shared expert is one more expert, whose tokens are all.

#include <cstdint>
#include <string_view>

#include "cuda/experts/expert_range.h"
#include "cuda/experts/experts.h"
#include "cuda/experts/fixed_records.h"
#include "cuda/experts/row_products.h"
#include "cuda/launch.h"

namespace thalweg::cu {

constexpr int kGroupedItemTokens = 8;  // the most
constexpr int kMostGroupedTokens = 128;
constexpr int kMostGroupedExperts = 512;
constexpr int kMostGroupedSlots = 32;
constexpr int kSharedItem = -1;  // instead of an expert

// Items of up to `item_tokens` tokens: those of the shared expert first, whose rows are tokens.
struct GroupedItems {
  ExpertItem* items = nullptr;
  std::int32_t* count = nullptr;
  std::int32_t* pairs = nullptr;  // [T S], by expert
  int item_tokens = 0;
};

struct GroupedRouter {
  Elements x, router;
  float* logits;          // [T,E]
  std::uint8_t* records;  // [T,D / 256]
  int tokens;
  int experts;
  int k_tiles;  // D / 256
};
void launch_grouped_router(const GroupedRouter& router, const DeviceProperties& device, cudaStream_t stream,
                           std::string_view operation);

struct GroupedChoice {
  const float* logits;  // [T,E]
  int tokens;
  int experts;
  float* weights;     // [T,S]
  std::int32_t* ids;  // [T,S], among the experts that are here; -1: another rank's
  ExpertRange here;
  int slots;
  bool renormalize;
  bool shared;
  GroupedItems items;
};
void launch_grouped_choice(const GroupedChoice& choice, const DeviceProperties& device, cudaStream_t stream,
                           std::string_view operation);

// The weights of the experts or of the shared expert in one launch, and how a block divides their rows.
struct GroupedSide {
  WeightRows first;
  WeightRows second;  // up, beside gate; else absent
  int experts;
  int n;        // rows of each matrix, a multiple of 32
  int k_tiles;  // of a row
  int k_warps;  // warps that share rows, each with every k_warps-th K tile
  int units;    // warps or groups of them that have rows of their own
  int groups;   // runs of rows of a warp, one after the other
  int stages;   // of a warp's ring, 2 to kMostGroupedStages
  int stage_bytes;

  // Rows of each matrix in a block.
  __host__ __device__ int block_rows() const { return units * groups * (second.data != nullptr ? 16 : 32); }
  __host__ __device__ int blocks() const { return (n + block_rows() - 1) / block_rows(); }
};

struct GroupedProduct {
  GroupedSide experts, shared;
  GroupedItems items;
  int slots;
  int item_blocks;   // of an item
  int first_item;    // of the launch
  int shared_items;  // are the first
  bool waits;        // for the launches ahead before it begins (grouped_kernel.h)
  // Gate and up: records [T,k_tiles]. Down: f32, of the pairs [T S,K] and of the shared expert [T,K].
  const void* x;
  const void* shared_x;
  // Gate and up: f32 [T S,N] and [T,N]. Down: bf16, the same.
  void* y;
  void* shared_y;
};

constexpr int kGroupedWarps = 8;
constexpr int kMostGroupedStages = 6;
constexpr int kGroupedThreads = kGroupedWarps * kWarpSize;

// Bytes between the records of two rows of activations in shared memory: reads of neighboring rows access different
// banks.
__host__ __device__ constexpr int grouped_x_pitch(int k_tiles) {
  return (k_tiles * kFixedRecordBytes + 63) / 128 * 128 + 64;
}
std::string_view grouped_refusal(DType type);  // empty: there is a kernel
int grouped_stage_bytes(DType type);           // of 16 rows of a K tile
// Both launches of a product, or the only one.
void launch_grouped_product(GroupedProduct p, bool down, std::int64_t most_items, const DeviceProperties& device,
                            cudaStream_t stream, std::string_view operation);

}  // namespace thalweg::cu
