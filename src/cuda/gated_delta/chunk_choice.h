#pragma once

// The choice on the device between two launches, of which the first serves the shorter range of lengths (LengthRange).

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/chunk_arguments.h"

namespace thalweg::cu {

__device__ inline bool is_taken(const ChunkArguments& args) {
  int longest = 0;
#pragma unroll 1
  for (int n = 0; n < args.map.sequences; ++n) longest = max(longest, args.map.sequence(n).length);
  return longest >= args.longest.least && longest <= args.longest.most;
}

// Begins a launch; false if the block has nothing to do. The second of two launches may begin, and read the lengths,
// when they have been written. If it is not taken, its blocks end beside those of the first where a multiprocessor is
// free, without waiting for them; one waits, so that the launch does not end ahead of the first.
__device__ inline bool begin_chosen(const ChunkArguments& args) {
  if (args.longest.is_any()) {
    pdl_trigger();
    pdl_wait();
    return true;
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
