#pragma once

// The choice on the device between launches one after the other, which serve ranges of lengths (LengthRange), the
// shortest first.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/chunk_arguments.h"

namespace thalweg::cu {

__device__ inline bool is_taken(const ChunkArguments& args) {
  if (args.longest.is_any()) return true;
  int longest = 0;
#pragma unroll 1
  for (int n = 0; n < args.map.sequences; ++n) longest = max(longest, args.map.sequence(n).length);
  return longest >= args.longest.least && longest <= args.longest.most;
}

// Begins a launch; false if the block has nothing to do. A launch that is not the first may begin, and read the
// lengths, when they have been written. If it is not taken, its blocks end beside those of the first where a
// multiprocessor is free, without waiting for them; one waits, so that the launch does not end ahead of the first.
// Launches for segments wait for each other.
__device__ inline bool begin_chosen(const ChunkArguments& args) {
  if (args.longest.is_any() || args.segment_chunks > 0) {
    pdl_trigger_and_wait();
    return is_taken(args);
  }
  if (args.longest.least == 0) {
    pdl_wait();
    pdl_trigger();
    return is_taken(args);
  }
  pdl_trigger();
  const bool taken = is_taken(args);
  if (taken || (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0)) pdl_wait();
  return taken;
}

}  // namespace thalweg::cu
