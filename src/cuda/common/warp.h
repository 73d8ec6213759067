#pragma once

namespace thalweg::cu {

constexpr int kWarpSize = 32;

// The same value, unknown to the compiler: it recomputes what depends on it instead of keeping it in registers.
__device__ inline int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// A value that is the same for all lanes, so that the compiler knows it: branches on it are uniform. By a whole warp.
template <class Value>
__device__ Value uniform(Value value) {
  return __shfl_sync(0xFFFFFFFFU, value, 0);
}
// The warp of a thread of the block or of a warpgroup. By a whole warp.
__device__ inline int warp_of(int thread) { return uniform(thread / kWarpSize); }

// The sum over groups of `kLanes` neighboring lanes, the same bits in each of them.
template <int kLanes = kWarpSize>
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, distance);
  return x;
}

// Sums two values over pairs of neighboring lanes: even lanes return the sum of the first, odd lanes of the second.
__device__ inline float sum_two_of_pairs(const float (&values)[2]) {
  const bool odd = (threadIdx.x & 1U) != 0;
  return (odd ? values[1] : values[0]) + __shfl_xor_sync(0xFFFFFFFFU, odd ? values[0] : values[1], 1);
}

}  // namespace thalweg::cu
