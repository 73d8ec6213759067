#pragma once

// Parameters of the expert kernels: ids, row lists, a matmul.

#include <cstdint>

#include "cuda/common/pdl.h"
#include "cuda/common/tensor_view.h"
#include "cuda/experts/token_tiles.h"
#include "thalweg/device.h"

namespace thalweg::cu {

constexpr int kWrongExpert = -2;

// expert_ids[T,S]; kernels check the values.
struct ExpertIds {
  const std::int32_t* data;  // null: every pair's expert is 0
  std::int64_t stride;       // from token to token
  int slots;
  int pairs;  // T * S
  int experts;
  std::int32_t* fault;  // may be null

  // The expert of a pair, token * S + slot; -1 if it is not here, kWrongExpert if the id is out of range.
  __device__ int of(int pair) const {
    if (data == nullptr) return 0;
    std::int64_t at = pair;
    if (stride != slots) at += pair / slots * (stride - slots);
    return checked(data[at]);
  }
  __device__ int of(int token, int slot) const { return data == nullptr ? 0 : checked(data[token * stride + slot]); }

 private:
  __device__ int checked(int id) const { return id >= -1 && id < experts ? id : kWrongExpert; }
};

// A work item: rows of one expert that are multiplied together, rows[begin .. begin + count) of the lists.
struct ExpertItem {
  std::int32_t expert;
  std::int32_t begin;
  std::int32_t count;
};

// Row lists in device memory. Pairs without an expert are in no list.
struct ExpertLists {
  std::int32_t* offsets = nullptr;    // [E+1]
  std::int32_t* rows = nullptr;       // [pairs]: rows[offsets[e] .. offsets[e+1]) are e's pairs, ascending
  ExpertItem* items = nullptr;        // [most_items()]: by expert, then by row; at most `item_rows` rows each
  std::int32_t* num_items = nullptr;  // [1]
  int item_rows = 0;
  TokenTile* tiles = nullptr;  // [most_tiles()]: the same rows in tiles of the tiled matmuls
  std::int32_t* tile_count = nullptr;
};

// y[pair] = weights[expert of pair] x[row of pair] + bias.
struct ExpertMatmul {
  const std::uint8_t* weights = nullptr;  // [E,N,K]
  std::int64_t expert_bytes = 0;          // from expert to expert
  std::int64_t row_bytes = 0;             // from row to row
  int n = 0;
  int k = 0;
  Elements x;                   // [T,K] or [T,S,K]
  bool x_per_slot = false;      // the latter
  Elements y;                   // [T,S,N]; of linear [T,N]
  const float* bias = nullptr;  // [N]
  ExpertIds ids{};              // of linear: one expert, pairs are tokens
  PdlOrder order;
};

// Reports a pair whose id is out of range; called by all threads of all its blocks for a pair without an expert.
__device__ inline void report_missing_expert(const ExpertIds& ids, int expert) {
  if (expert == kWrongExpert && blockIdx.x == 0 && threadIdx.x == 0 && ids.fault != nullptr) {
    atomicOr(ids.fault, static_cast<std::int32_t>(kFaultExpertIds));
  }
}

// Stores sum + bias to y at `offset`.
__device__ inline void store_result(const ExpertMatmul& p, std::int64_t offset, int row, float sum) {
  if (p.bias != nullptr) sum += p.bias[row];
  p.y.store(offset, sum);
}

}  // namespace thalweg::cu
