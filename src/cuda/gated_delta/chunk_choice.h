#pragma once

// The choice on the device between ways of which all launches follow each other (LengthRange).

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

// For the first launch. The next one may begin, and read the lengths, when they have been written.
__device__ inline void begin_first(const ChunkArguments& args) {
  if (args.longest.is_any()) pdl_trigger();
  pdl_wait();
  pdl_trigger();
}

// For the others; false if the block has nothing to do. Most such blocks do not wait, and end beside those of the way
// taken where a multiprocessor is free; one waits, so that the launch does not end ahead of them.
__device__ inline bool begin_next(const ChunkArguments& args) {
  pdl_trigger();
  const bool taken = is_taken(args);
  if (taken || (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0)) pdl_wait();
  return taken;
}

}  // namespace thalweg::cu
