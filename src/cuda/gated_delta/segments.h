#pragma once

// Segments of sequences (chunk_kernels.h), as the kernels see them.

#include "cuda/gated_delta/chunk_arguments.h"

namespace thalweg::cu {

// The chunks before the end of segment p of sequence n after which a walk from a zero state has the exact state of the
// next segment, because all earlier tokens have decayed; 0 if the whole segment does not suffice. By a whole warp; all
// lanes return it.
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
    const unsigned decayed = __ballot_sync(0xFFFFFFFFU, back < args.segment_chunks && sum + scan < kNegligibleGate);
    if (decayed != 0) return done + __ffs(static_cast<int>(decayed));
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
  const std::int64_t index = args.map.first_index(n, args.segment_chunks * kChunk) + p;
  const std::int64_t values = static_cast<std::int64_t>(args.value_width) * args.key_width;
  float* b = args.carries + (index * args.hv + head) * segment_floats(args.key_width, args.value_width);
  return {b, b + values, b + segment_floats(args.key_width, args.value_width) - values};
}

}  // namespace thalweg::cu
