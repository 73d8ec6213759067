#pragma once

// Segments of sequences (chunk_kernels.h), as the kernels see them.

#include "cuda/gated_delta/chunk_arguments.h"

namespace thalweg::cu {

// How many chunks before the end of segment p of sequence n a walk may start from a zero state, because what lies
// before them has decayed; 0 if it has not over the whole segment. By a whole warp; every lane gets the answer.
__device__ inline int warmup_chunks(const ChunkArguments& args, int n, int p, int head) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t first = args.map.first_index(n, kChunk) + static_cast<std::int64_t>(p) * args.segment_chunks;
  float sum = 0.0F;
  for (int done = 0; done < args.segment_chunks; done += 32) {
    const int back = done + lane;
    float scan =
        back < args.segment_chunks ? args.chunk_gates[(first + args.segment_chunks - 1 - back) * args.hv + head] : 0.0F;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = __shfl_up_sync(0xFFFFFFFFU, scan, distance);
      if (lane >= distance) scan += other;
    }
    const unsigned forgotten = __ballot_sync(0xFFFFFFFFU, back < args.segment_chunks && sum + scan < kNegligibleGate);
    if (forgotten != 0) return done + __ffs(static_cast<int>(forgotten));
    sum += __shfl_sync(0xFFFFFFFFU, scan, 31);
  }
  return 0;
}

__device__ inline int segment_count(const ChunkArguments& args, int length) {
  const int tokens = args.segment_chunks * kChunk;
  return (length + tokens - 1) / tokens;
}

// B, M and the state at the start of segment p of sequence n.
struct Carry {
  float* b;      // [V,K]
  float* m;      // [K,K]
  float* start;  // [V,K]
};
__device__ inline Carry carry(const ChunkArguments& args, int n, int p, int head) {
  const std::int64_t piece = args.map.first_index(n, args.segment_chunks * kChunk) + p;
  const std::int64_t values = static_cast<std::int64_t>(args.value_width) * args.key_width;
  float* b = args.carries + (piece * args.hv + head) * segment_floats(args.key_width, args.value_width);
  return {b, b + values, b + segment_floats(args.key_width, args.value_width) - values};
}

}  // namespace thalweg::cu
