#pragma once

#include <limits>

#include "cuda/common/tensor_view.h"
#include "cuda/gated_delta/chunk_record.h"

namespace thalweg::cu {

constexpr int kAnyLength = std::numeric_limits<int>::max();

// The tokens that the longest of a call's sequences has for a launch to do anything. Where the host does not know the
// lengths, it launches two ways, of which one does nothing.
struct LengthRange {
  int least = 0;
  int most = kAnyLength;

  __host__ __device__ bool is_any() const { return least == 0 && most == kAnyLength; }
};

// The parameters of the chunked gated delta rule's passes (chunk_kernels.h).
struct ChunkArguments {
  TensorView<const void> q, k, v;  // bf16 or f16, rows aligned to 16 bytes
  TensorView<const float> g, beta;
  Elements gate_a, gate_b, a_log, dt_bias;  // instead of g and beta, if gate_a is present
  TensorView<const void> initial_state;
  TensorView<void> final_state;
  const std::int32_t* state_indices;
  std::int64_t state_slots;
  TensorView<void> o;
  TensorView<void> checkpoints;  // [B,checkpoint_count,HV,.,.]
  std::int64_t checkpoint_count;
  int checkpoint_chunks;  // from one checkpoint to the next
  bool checkpoints_are_bf16;
  std::int32_t* fault;
  LengthRange longest;
  std::byte* records;
  float* chunk_gates;  // [chunks,HV]: sum of g over a chunk
  SequenceMap map;
  std::int64_t chunks;
  int segment_chunks;  // 0: sequences are not split
  std::int64_t segments;
  int walk_segments;   // of a walk for outputs
  std::int64_t walks;  // for outputs: of whole sequences, or of walk_segments segments each
  float* carries;      // [segments,HV] of segment_floats(): B, M, and the state at the segment's start
  int hk, hv, key_width, value_width;
  bool tiled;        // head map
  bool normalize;    // q and k to norm 1
  bool state_is_kv;  // layout
  bool state_is_bf16;
  bool o_is_f32;
  float norm_eps;
  float scale;
};

// A sum of gates below which the state before it does not matter: exp(-17) < 2^-24.
constexpr float kNegligibleGate = -17.0F;
__host__ __device__ constexpr std::int64_t segment_floats(std::int64_t k, std::int64_t v) { return 2 * v * k + k * k; }

}  // namespace thalweg::cu
