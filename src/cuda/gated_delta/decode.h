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
  int warp_rows;  // of a head's state
};
DecodeOneKernel decode_one_kernel(std::int64_t k, DType state);

// For compute capability 9.0; null in a build without it. Narrow tiles need Tokens::kOneByOne.
DecodeStepKernel decode_step_kernel(std::int64_t k, DType state, Tokens tokens, bool narrow);

// The step for many sequences in several launches, V = kStepStatesV.
constexpr int kStepStatesV = 128;
struct SplitStep {
  DecodeStepKernel inputs = nullptr;
  int inputs_threads = 0;   // of a block
  int inputs_channels = 0;  // of a block
  DecodeStepKernel states = nullptr;
  int head_blocks = 1;  // of a value head
  int states_threads = 0;
  std::size_t states_shared_bytes = 0;
  DecodeStepKernel norm = nullptr;  // launched if there is a z; null: done by `states`
  int norm_threads = 0;
  int norm_heads = 0;  // of a block
};
// At most `tokens` of a sequence, by substitution; with snapshots one by one. Replays and drafts are for states of f32.
SplitStep split_step(std::int64_t k, DType inputs, DType state, std::int64_t tokens, bool snapshots, bool replays);

// Calls pick.template operator()<K, State>().
template <class Pick>
auto pick_decode(std::int64_t k, DType state, Pick pick) {
  const auto with_k = [&]<int kK>() {
    return state == DType::kBF16 ? pick.template operator()<kK, Bf16>() : pick.template operator()<kK, float>();
  };
  return k == 64 ? with_k.template operator()<64>() : with_k.template operator()<128>();
}

}  // namespace thalweg::cu
