#pragma once

// The two passes of the chunked gated delta rule on tensor cores. The first works on all chunks at once and leaves a
// record of each (device/chunk_record.h); the second walks through each sequence's chunks with the state in registers.

#include <cuda_runtime.h>

#include "cuda/device/chunk_record.h"
#include "cuda/device/scalars.h"
#include "cuda/device/tensor_view.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::cu {

struct ChunkArguments {
  TensorView<const void> q, k, v;  // bf16 or f16, rows aligned to 16 bytes
  TensorView<const float> g, beta;
  ScalarView gate_a, gate_b, a_log, dt_bias;  // instead of g and beta, if a is present
  TensorView<const void> initial_state;
  TensorView<void> final_state;
  const std::int32_t* state_indices;
  std::int64_t state_slots;
  TensorView<void> o;
  std::int32_t* fault;
  std::byte* records;
  SequenceMap map;
  std::int64_t slots;  // of records
  int hk, hv, key_width, value_width;
  bool tiled;        // head map
  bool normalize;    // q and k to norm 1
  bool state_is_kv;  // layout
  bool state_is_bf16;
  bool o_is_f32;
  float norm_eps;
  float scale;
};

// dtype of q: kBF16 or kF16; key_width 64 or 128.
void launch_chunk_prepare(const ChunkArguments& args, DType dtype, cudaStream_t stream);

namespace sm90 {
// By wgmma, for GPUs of compute capability 9.0. value_width is a multiple of 64.
void launch_chunk_scan(const ChunkArguments& args, DType dtype, int multiprocessors, cudaStream_t stream);
}  // namespace sm90

}  // namespace thalweg::cu
