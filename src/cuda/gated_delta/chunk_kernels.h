#pragma once

// The passes of the chunked gated delta rule on tensor cores. The first works on all chunks at once and leaves a record
// of each (chunk_record.h); the second walks through each sequence's chunks with the state in registers.
//
// Where heads and sequences are too few for the device, the second pass walks through segments of each sequence at the
// same time. A segment begins with the state at its start, which it gets in one of two ways, decided on the device:
//   - If the gates of the segment before it sum up to less than kNegligibleGate, it starts from zero that many chunks
//   earlier
//     that what lies before has decayed below f32's own rounding.
//   - Else from the exact state: over a segment a state S [V,K] becomes S M + B, where B is what the segment makes of a
//     zero state and M [K,K] what it makes of the identity with all v = 0. Both are computed for all such segments at
//     once, then chained.

#include <cuda_runtime.h>

#include "cuda/gated_delta/chunk_arguments.h"
#include "cuda/launch.h"
#include "thalweg/dtype.h"

namespace thalweg::cu {

// Chains the segments' B and M into the states at their starts.
void launch_chunk_carry(const ChunkArguments& args, const DeviceProperties& device, cudaStream_t stream);

// dtype of q: kBF16 or kF16; key_width 64, 128 or 256.
void launch_chunk_prepare(const ChunkArguments& args, DType dtype, cudaStream_t stream);

// The second pass by mma.sync; key_width as above, value_width a multiple of 32.
// Segments' B and M, where a segment after them needs them.
void launch_chunk_carries(const ChunkArguments& args, DType dtype, const DeviceProperties& device, cudaStream_t stream);
// Outputs and final states.
void launch_chunk_scan(const ChunkArguments& args, DType dtype, const DeviceProperties& device, cudaStream_t stream);

namespace sm90 {
// The same by wgmma, for GPUs of compute capability 9.0; key_width 64 or 128, value_width a multiple of 64.
void launch_chunk_carries(const ChunkArguments& args, DType dtype, const DeviceProperties& device, cudaStream_t stream);
void launch_chunk_scan(const ChunkArguments& args, DType dtype, const DeviceProperties& device, cudaStream_t stream);
// Both passes in one kernel, for whole sequences: no records in memory. q is bf16 or f16; a block has 64 rows of a
// state for each of its consumers, 1 or 2, into which value_width divides.
void launch_chunk_fused_bf16(const ChunkArguments& args, int consumers, const DeviceProperties& device,
                             cudaStream_t stream);
void launch_chunk_fused_f16(const ChunkArguments& args, int consumers, const DeviceProperties& device,
                            cudaStream_t stream);
}  // namespace sm90

}  // namespace thalweg::cu
