#pragma once

#include <cuda_runtime.h>

#include "cuda/gated_delta/stream_step_kernel.h"

namespace thalweg::cu {

// Kernels for K = 64 or 128 and states of f32 or bf16.
using DecodeKernel = void (*)(Decode);
using DecodeStepKernel = void (*)(DecodeStep);

DecodeKernel decode_kernel(std::int64_t k, DType state, Tokens tokens);
DecodeKernel decode_one_kernel(std::int64_t k, DType state);
// For compute capability 9.0; null in a build without it. Narrow tiles need Tokens::kOneByOne.
DecodeStepKernel decode_step_kernel(std::int64_t k, DType state, Tokens tokens, bool narrow);
// The same with replays and drafts, for states of f32, by substitution.
DecodeStepKernel replay_step_kernel(std::int64_t k, bool narrow);
// The step for many sequences.
struct StreamStepKernel {
  DecodeStepKernel kernel = nullptr;
  int stages = 0;
  std::size_t shared_bytes = 0;
};
// With replays and drafts for states of f32.
StreamStepKernel stream_step_kernel(std::int64_t k, DType state, std::int64_t tokens, std::int64_t heads, bool replays);

// Calls pick.template operator()<K, State>().
template <class Pick>
auto pick_decode(std::int64_t k, DType state, Pick pick) {
  const auto with_k = [&]<int kK>() {
    return state == DType::kBF16 ? pick.template operator()<kK, Bf16>() : pick.template operator()<kK, float>();
  };
  return k == 64 ? with_k.template operator()<64>() : with_k.template operator()<128>();
}

}  // namespace thalweg::cu
