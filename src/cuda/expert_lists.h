#pragma once

// The row lists of the experts in device memory, and the activations as the matrix units take them: what the expert
// matmuls of more than a few tokens begin with, made by one launch.

#include <cstdint>
#include <string_view>

#include "cuda/device/elements.h"
#include "thalweg/device.h"
#include "thalweg/tensor.h"

namespace thalweg::cu {

// expert_ids[T,S] as kernels read them. Nobody has checked the values.
struct ExpertIds {
  const std::int32_t* data;
  std::int64_t stride;  // from token to token
  int slots;
  int pairs;  // T * S
  int experts;
  std::int32_t* fault;  // may be null

  // -1 where there is no such expert. A pair is token * S + slot.
  __device__ int of(int pair) const {
    const int token = pair / slots;
    const int id = data[token * stride + (pair - token * slots)];
    return id >= 0 && id < experts ? id : -1;
  }
};
ExpertIds expert_ids(const ConstTensor& ids, std::int64_t experts, const Tensor& fault);

// Some rows of one expert that are multiplied together: rows[begin .. begin + count) of the lists.
struct ExpertItem {
  std::int32_t expert;
  std::int32_t begin;
  std::int32_t count;
};

// All in device memory. Pairs without an expert are in no list.
struct ExpertLists {
  std::int32_t* offsets = nullptr;  // [E+1]
  std::int32_t* rows = nullptr;     // [pairs]: rows[offsets[e] .. offsets[e+1]) are e's pairs, ascending
  ExpertItem* items = nullptr;      // [most_items()]: in order of experts, then of rows; at most `item_rows` rows each
  std::int32_t* num_items = nullptr;  // [1]
  int item_rows = 0;
};
// How many items there can be.
std::int64_t most_items(std::int64_t experts, std::int64_t pairs, int item_rows);

// Where lists and copied activations lie in a workspace; without memory, only how many bytes they take.
struct ExpertPlan {
  ExpertLists lists;
  void* activations = nullptr;  // bf16 [rows of x, padded_k]; zeros from K on
  std::int64_t padded_k = 0;    // a multiple of `k_multiple`
  std::size_t bytes = 0;

  // x is [T,K] or [T,S,K]; a null workspace plans only.
  static ExpertPlan make(const ConstTensor& x, const ConstTensor& ids, std::int64_t experts, int item_rows,
                         int k_multiple, void* workspace);
};

// More have no room in shared memory.
constexpr std::int64_t kMostListedExperts = 32768;

// Lists alone: items may be null.
void build_expert_lists(const ExpertLists& lists, const ExpertIds& ids, const Stream& stream,
                        std::string_view operation);

// Lists, items and activations: one launch.
void prepare_experts(const ExpertPlan& plan, const ExpertIds& ids, const ConstTensor& x, const Stream& stream,
                     std::string_view operation);

}  // namespace thalweg::cu
