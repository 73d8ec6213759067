#pragma once

// What the expert matmuls of more than a few tokens begin with, made by one launch: the row lists of the experts and
// the converted activations, both in device memory.

#include <cstdint>
#include <string_view>

#include "core/arena.h"
#include "cuda/experts/experts.h"
#include "thalweg/device.h"
#include "thalweg/tensor.h"

namespace thalweg::cu {

ExpertIds expert_ids(const ConstTensor& ids, std::int64_t experts, const Tensor& fault);
ExpertIds one_expert(std::int64_t pairs);

// The most items that there can be.
std::int64_t most_items(std::int64_t experts, std::int64_t pairs, int item_rows);

// The layouts of converted activations.
enum class ActivationOrder {
  kRows,         // bf16 [rows, K]
  kTiles,        // bf16, staged for the tiled matmuls (token_tiles.h)
  kScaledTiles,  // the same in f16, each row scaled
  kRecords,      // f16, each row scaled (activation_records.h)
};

// Row lists and converted activations in a workspace.
struct ExpertPlan {
  ExpertLists lists;
  std::uint16_t* activations = nullptr;  // zeros from K on
  float* factors = nullptr;              // [rows of x] of the results, for kRecords; else null
  ActivationOrder order = ActivationOrder::kRows;
  std::int64_t k_tiles = 0;  // of a row
  std::int64_t padded_k = 0;

  ExpertPlan() = default;
  // x is [T,K] or [T,S,K]; each row is padded to whole K tiles of `tile_k` values.
  ExpertPlan(const ConstTensor& x, std::int64_t pairs, std::int64_t experts, int item_rows, int tile_k,
             ActivationOrder order, Arena& arena);
};

// The most experts whose counters fit into shared memory.
constexpr std::int64_t kMostListedExperts = 32768;

// Makes the lists and tiles of the tiled matmuls (unless lists has no offsets) and converts x[T,K] or [T,S,K] to the
// staged layout, in one launch. With `factors` [rows of x], rows are f16 and scaled, and `factors` become what their
// results are to be multiplied by; else rows are bf16.
void prepare_tiles(const ExpertLists& lists, const ExpertIds& ids, const ConstTensor& x, std::uint16_t* staged,
                   const Stream& stream, std::string_view operation, float* factors = nullptr);

// Converts x[T,K] to bf16 [T,K], K a multiple of 8.
void convert_rows(const ConstTensor& x, std::uint16_t* to, const Stream& stream, std::string_view operation);

// Makes offsets and rows alone.
void launch_lists(const ExpertIds& ids, const ExpertLists& lists, const Stream& stream, std::string_view operation);

// Makes lists and items, and converts the activations, in one launch.
void prepare_experts(const ExpertPlan& plan, const ExpertIds& ids, const ConstTensor& x, const Stream& stream,
                     std::string_view operation);
// The same for silu(gate) * up, both F32 [T,S,K] and contiguous; makes lists only if has_lists is false.
void prepare_gated(const ExpertPlan& plan, bool has_lists, const ExpertIds& ids, const ConstTensor& gate,
                   const ConstTensor& up, const Stream& stream, std::string_view operation);

}  // namespace thalweg::cu
