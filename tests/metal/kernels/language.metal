// The executor's subset of the language, compared with the host.

#include <metal_simdgroup_matrix>
#include <metal_stdlib>

using namespace metal;

constant int kFactor [[function_constant(0)]];

struct Sizes {
  int count;
};

kernel void rounds(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                   device half* halves [[buffer(2)]], device bfloat* bfloats [[buffer(3)]],
                   uint3 group [[threadgroup_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
  const int i = int(group.x * 32 + t);
  if (i >= p.count) return;
  halves[i] = half(x[i]);
  bfloats[i] = bfloat(x[i]);
}

kernel void widens(constant Sizes& p [[buffer(0)]], device const half* halves [[buffer(1)]],
                   device const bfloat* bfloats [[buffer(2)]], device float* from_half [[buffer(3)]],
                   device float* from_bfloat [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                   uint t [[thread_index_in_threadgroup]]) {
  const int i = int(group.x * 32 + t);
  if (i >= p.count) return;
  from_half[i] = float(halves[i]);
  from_bfloat[i] = float(bfloats[i]);
}

// Single operations on 16-bit floats round each time.
kernel void adds(constant Sizes& p [[buffer(0)]], device const half* a [[buffer(1)]],
                 device const half* b [[buffer(2)]], device half* sums [[buffer(3)]],
                 uint3 group [[threadgroup_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
  const int i = int(group.x * 32 + t);
  if (i < p.count) sums[i] = a[i] + b[i];
}

kernel void simdgroup_functions(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                device float* y [[buffer(2)]], uint lane [[thread_index_in_simdgroup]],
                                uint t [[thread_index_in_threadgroup]]) {
  device float* mine = y + t * 8;
  mine[0] = simd_sum(x[t]);
  mine[1] = simd_max(x[t]);
  mine[2] = simd_prefix_inclusive_sum(x[t]);
  mine[3] = simd_prefix_exclusive_sum(x[t]);
  mine[4] = simd_shuffle(x[t], 31 - lane);
  mine[5] = simd_shuffle_xor(x[t], 5u);
  mine[6] = simd_broadcast(x[t], 3u);
  mine[7] = float(simd_sum(uint(lane)) * uint(kFactor));
}

// y = x x^T + 2 I, for the 8 x 8 matrix of each simdgroup.
kernel void multiplies(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                       device float* y [[buffer(2)]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  simdgroup_float8x8 a;
  simdgroup_float8x8 b;
  simdgroup_load(a, x + 64 * simdgroup);
  simdgroup_load(b, x + 64 * simdgroup, 8, 0, true);
  simdgroup_float8x8 sum = simdgroup_float8x8(2.0f);
  simdgroup_multiply_accumulate(sum, a, b, sum);
  simdgroup_store(sum, y + 64 * simdgroup);
}
