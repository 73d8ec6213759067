#pragma once

// What blocks that hold states in the fused step for many sequences (step_one_kernel.h, step_states_kernel.h) read of
// those that prepare its tokens (step_inputs_kernel.h), and hand to those that norm its outputs (step_norm_kernel.h).

#include "cuda/gated_delta/decode_step_tokens.h"

namespace thalweg::cu {

// The place-th value head of a key head. Key heads are along y of the grid, sequences along z: without divisions, for
// which the loads of the state would wait.
struct StepHead {
  int number = static_cast<int>(blockIdx.z);  // of the sequence
  int k_head = static_cast<int>(blockIdx.y);
  int head;

  __device__ StepHead(const DecodeStep& p, int place) : head(p.value_head(k_head, place)) {}

  // [most_tokens,2,K], of the sequence
  __device__ const float* keys(const DecodeStep& p, int k_size) const {
    const auto tokens = (static_cast<std::int64_t>(number) * p.hk + k_head) * p.most_tokens;
    return p.keys + tokens * (2 * k_size);
  }
  // [V], of its token t
  __device__ const float* values(const DecodeStep& p, int t) const { return p.values + row(p, t) * p.v_size; }
  // [most_tokens], HV apart
  __device__ const float2* gates(const DecodeStep& p) const { return p.step_gates + row(p, 0); }
  __device__ const TokenMatrices* matrices(const DecodeStep& p) const {
    return p.matrices + static_cast<std::int64_t>(number) * p.hk * p.ratio + head;
  }
  // [V], of its own token t
  __device__ float* outputs(const DecodeStep& p, int t) const { return p.outputs + row(p, t) * p.v_size; }

 private:
  __device__ std::int64_t row(const DecodeStep& p, int t) const {
    return (static_cast<std::int64_t>(number) * p.most_tokens + t) * p.hk * p.ratio + head;
  }
};

// Four numbers of other blocks, not from the L1 cache.
__device__ inline float4 read_prepared(const float* from) { return __ldcg(reinterpret_cast<const float4*>(from)); }

}  // namespace thalweg::cu
