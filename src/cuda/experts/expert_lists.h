#pragma once

// The row lists of the experts in device memory, and the activations as the matrix units take them: what the expert
// matmuls of more than a few tokens begin with, made by one launch.

#include <cstdint>
#include <string_view>

#include "core/arena.h"
#include "cuda/experts/experts.h"
#include "thalweg/device.h"
#include "thalweg/tensor.h"

namespace thalweg::cu {

ExpertIds expert_ids(const ConstTensor& ids, std::int64_t experts, const Tensor& fault);
ExpertIds one_expert(std::int64_t pairs);

// How many items there can be.
std::int64_t most_items(std::int64_t experts, std::int64_t pairs, int item_rows);

// How activations lie that were copied for a kernel.
enum class ActivationOrder {
  kRows,         // bf16 [rows, K]
  kTiles,        // of the tiled matmuls, bf16: token_tiles.h
  kScaledTiles,  // the same, scaled f16
  kSlices,       // of products of codes, scaled f16: activation_slices.h
};

// Row lists and converted activations in a workspace.
struct ExpertPlan {
  ExpertLists lists;
  std::uint16_t* activations = nullptr;  // zeros from K on
  float* factors = nullptr;              // [rows of x] of their results, for kSlices
  ActivationOrder order = ActivationOrder::kRows;
  std::int64_t slices = 0;  // of a row
  std::int64_t padded_k = 0;

  ExpertPlan() = default;
  // x is [T,K] or [T,S,K]; each row becomes whole slices of `slice` values.
  ExpertPlan(const ConstTensor& x, std::int64_t pairs, std::int64_t experts, int item_rows, int slice,
             ActivationOrder order, Arena& arena);
};

// More have no room in shared memory.
constexpr std::int64_t kMostListedExperts = 32768;

// For the tiled matmuls: lists and tiles (unless lists has no offsets), and x[T,K] or [T,S,K] in their staged order,
// one launch. With `factors` [rows of x] rows are f16, scaled, and their results are to be multiplied by these; else
// bf16.
void prepare_tiles(const ExpertLists& lists, const ExpertIds& ids, const ConstTensor& x, std::uint16_t* staged,
                   const Stream& stream, std::string_view operation, float* factors = nullptr);

// x[T,K] as bf16 [T,K], K a multiple of 8.
void convert_rows(const ConstTensor& x, std::uint16_t* to, const Stream& stream, std::string_view operation);

// Lists, items and activations: one launch.
void prepare_experts(const ExpertPlan& plan, const ExpertIds& ids, const ConstTensor& x, const Stream& stream,
                     std::string_view operation);
// The same of silu(gate) * up, both F32 [T,S,K] without gaps; lists only unless they are there.
void prepare_gated(const ExpertPlan& plan, bool has_lists, const ExpertIds& ids, const ConstTensor& gate,
                   const ConstTensor& up, const Stream& stream, std::string_view operation);

}  // namespace thalweg::cu
