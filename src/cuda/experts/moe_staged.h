#pragma once

// moe_ffn's `staged`, for few tokens on compute capability 9.0, in three launches: the router's logits (moe_router.cu);
// gate, up and SwiGLU; down and the sum over slots. As in `matvec`, the shared expert is one more slot of every token.
// Where `matvec` passes rows through rings, here all rows of a warp are copied at once: a few microseconds are too few
// to wait for memory twice. Kernels are instantiated by format (instances/moe_staged_*_sm90.cu).

#include <cstdint>

#include "cuda/experts/moe_matvec.h"

namespace thalweg::cu {

struct StagedGateUp {
  MoeMatvecSizes sizes;
  int shared_blocks;
  int stage_bytes;  // shared memory of a warp
  DType shared_type;
  const float* logits;    // [T,E], or [T,E+1] with the shared expert's
  const uint4* x_blocks;  // [T] rows of D/32 fixed blocks
  float* activated;       // [T,S*I+J]
  WeightRows gate, up, shared_gate, shared_up;
};

struct StagedDown {
  MoeMatvecSizes sizes;
  bool renormalize;
  int stage_bytes, shared_stage_bytes;  // shared memory of a slot
  DType shared_type;
  const float* logits;
  const float* activated;
  WeightRows down, shared_down;
  Compact<1> y;
};

// A warp computes so many outputs of gate and of up, whose rows come in stages.
constexpr int kStagedOutputs = 4;
constexpr int kStageOutputs = 2;
constexpr int kStages = kStagedOutputs / kStageOutputs;
constexpr int kStagedGateUpWarps = 4;
constexpr int kStagedGateUpThreads = kStagedGateUpWarps * kWarpSize;
constexpr int kStagedGateUpRows = kStagedOutputs * kStagedGateUpWarps;  // outputs of a block
// A block of down computes so many outputs of a token, with a warp for each slot.
constexpr int kStagedDownRows = 8;
constexpr int kStagedDownWarps = 14;  // the most
// So few registers that the blocks of both kernels of a token are on the device at the same time.
constexpr int kStagedGateUpBlocks = 6;  // per multiprocessor
constexpr int kStagedDownBlocks = 2;
constexpr int kMostStagedExperts = 512;  // logits that fit into a warp's registers

struct StagedKernels {
  void (*gate_up)(StagedGateUp);
  void (*down)(StagedDown);
};
template <DType kType>
StagedKernels staged_kernels();

namespace sm90 {
// Of a block format.
StagedKernels staged_moe_kernels(DType type);
}  // namespace sm90

}  // namespace thalweg::cu

// Instantiates a format; for files that include moe_staged_sm90.h.
#define THALWEG_MOE_STAGED(type)                                                  \
  template <>                                                                     \
  StagedKernels staged_kernels<DType::type>() {                                   \
    return {staged_gate_up_kernel<DType::type>, staged_down_kernel<DType::type>}; \
  }
