#pragma once

namespace thalweg::cu {

constexpr int kWarpSize = 32;

// The sum over groups of `kLanes` neighbouring lanes, the same bits in each of them.
template <int kLanes = kWarpSize>
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, distance);
  return x;
}

}  // namespace thalweg::cu
