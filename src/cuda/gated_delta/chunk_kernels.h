#pragma once

// The passes of the chunked gated delta rule on tensor cores. The first computes the records of all chunks
// (chunk_record.h); the second walks through each sequence's chunks with the state in registers.
//
// If heads and sequences are too few for the device, the second pass walks through segments of each sequence in
// parallel. The device decides how a segment obtains the state at its start:
//   - If the gates of the segment before it sum to less than kNegligibleGate, the walk starts from zero, so many chunks
//     earlier that everything before them has decayed below the rounding of f32.
//   - Else it starts from the exact state. Over a segment a state S [V,K] becomes S M + B, where B is the state after a
//     walk from zero, and M [K,K] the one after a walk from the identity with all v = 0. Both are computed for all such
//     segments in parallel, then chained.

#include <cuda_runtime.h>

#include "cuda/gated_delta/chunk_arguments.h"
#include "cuda/launch.h"
#include "thalweg/dtype.h"

namespace thalweg::cu {

enum class Pass {
  kScan,     // outputs and final states, of whole sequences or of segments
  kCarries,  // B and M of segments
};

// The sums of g over chunks: launch_chunk_prepare() has them too.
void launch_chunk_gates(const ChunkArguments& args, const DeviceProperties& device, cudaStream_t stream);

// Chains the segments' B and M into the states at their starts.
void launch_chunk_carry(const ChunkArguments& args, const DeviceProperties& device, cudaStream_t stream);

// dtype of q: kBF16 or kF16; key_width 64, 128 or 256.
void launch_chunk_prepare(const ChunkArguments& args, DType dtype, cudaStream_t stream);

// The second pass by mma.sync; key_width as above, value_width a multiple of 32.
// B and M of the segments that precede one with an exact start.
void launch_chunk_carries(const ChunkArguments& args, DType dtype, const DeviceProperties& device, cudaStream_t stream);
// Outputs and final states.
void launch_chunk_scan(const ChunkArguments& args, DType dtype, const DeviceProperties& device, cudaStream_t stream);

namespace sm90 {
// The second pass by wgmma, for compute capability 9.0; key_width 64 or 128, value_width a multiple of 64.
void launch_chunk_carries(const ChunkArguments& args, DType dtype, const DeviceProperties& device, cudaStream_t stream);
void launch_chunk_scan(const ChunkArguments& args, DType dtype, const DeviceProperties& device, cudaStream_t stream);
// Both passes in one kernel, without records in memory. A block has 64 rows of a state for each of its `consumers` (1
// or 2); value_width is a multiple of them. B and M, or outputs and final states; segments need two consumers and a
// key_width of 128.
void launch_chunk_fused_bf16(const ChunkArguments& args, int consumers, Pass pass, const DeviceProperties& device,
                             cudaStream_t stream);
void launch_chunk_fused_f16(const ChunkArguments& args, int consumers, Pass pass, const DeviceProperties& device,
                            cudaStream_t stream);
}  // namespace sm90

}  // namespace thalweg::cu
