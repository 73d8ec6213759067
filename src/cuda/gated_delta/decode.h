#pragma once

#include <cuda_runtime.h>

#include "cuda/gated_delta/decode_step_kernel.h"

namespace thalweg::cu {

// Kernels for K = 64 or 128 and states of f32 or bf16.
using DecodeKernel = void (*)(Decode);
using DecodeStepKernel = void (*)(DecodeStep);

DecodeKernel decode_kernel(std::int64_t k, DType state, Tokens tokens);

struct DecodeOneKernel {
  DecodeKernel kernel;
  int warps;      // of a block, at most
  int warp_rows;  // of a head's state
};
DecodeOneKernel decode_one_kernel(std::int64_t k, DType state);

// For compute capability 9.0; null in a build without it. Narrow tiles need Tokens::kOneByOne.
DecodeStepKernel decode_step_kernel(std::int64_t k, DType state, Tokens tokens, bool narrow);

// The step for many sequences in several launches, V = kStepV.
constexpr int kStepV = 128;
template <int kK>
constexpr int kStepMostRatio = kK / 16;  // value heads of a key head
struct SplitStep {
  DecodeStepKernel inputs = nullptr;
  int inputs_threads = 0;   // of a block
  int inputs_channels = 0;  // of a block: of v, or half of q and half of k
  DecodeStepKernel states = nullptr;
  int head_blocks = 1;  // of a value head
  int states_threads = 0;
  DecodeStepKernel norm = nullptr;  // launched if there is a z; null: done by `states`
  int norm_threads = 0;
  int norm_heads = 0;  // of a block
};
struct SplitShape {
  std::int64_t k;
  DType inputs, state;
  std::int64_t tokens;  // of a sequence, at most
  bool snapshots;       // tokens go one by one, else by substitution
  bool replays;         // and drafts: states of f32
  bool few;             // heads: a block for each fits on the device at once
};
SplitStep split_step(const SplitShape& shape);

// Calls pick.template operator()<K, State>().
template <class Pick>
auto pick_decode(std::int64_t k, DType state, Pick pick) {
  const auto with_k = [&]<int kK>() {
    return state == DType::kBF16 ? pick.template operator()<kK, Bf16>() : pick.template operator()<kK, float>();
  };
  return k == 64 ? with_k.template operator()<64>() : with_k.template operator()<128>();
}

}  // namespace thalweg::cu
