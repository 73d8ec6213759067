#pragma once

// What blocks that hold states in the fused step for many sequences (step_one_kernel.h, step_states_kernel.h) read of
// those that prepare its tokens (step_inputs_kernel.h).

#include "cuda/gated_delta/decode_step_tokens.h"

namespace thalweg::cu {

// The place-th value head of a key head. Key heads are along y of the grid, sequences along z: without divisions, for
// which the loads of the state would wait.
struct StepHead {
  int number = static_cast<int>(blockIdx.z);  // of the sequence
  int k_head = static_cast<int>(blockIdx.y);
  int head;

  __device__ StepHead(const DecodeStep& p, int place)
      : head(p.head_map == HeadMap::kTiled ? k_head + place * p.hk : k_head * p.ratio + place) {}
  // Of the sequence's first token.
  __device__ const float* inputs(const DecodeStep& p) const {
    return p.inputs + static_cast<std::int64_t>(number) * p.most_tokens * p.channels;
  }
  __device__ const float2* gates(const DecodeStep& p) const {
    return p.step_gates + static_cast<std::int64_t>(number) * p.most_tokens * p.hk * p.ratio + head;
  }
};

// Four numbers of other blocks, not from the L1 cache.
__device__ inline float4 read_prepared(const float* from) { return __ldcg(reinterpret_cast<const float4*>(from)); }

}  // namespace thalweg::cu
