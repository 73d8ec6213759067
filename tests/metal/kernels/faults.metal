// Kernels with one fault each, which the executor must detect, and correct counterparts.

#include <metal_simdgroup_matrix>
#include <metal_stdlib>

using namespace metal;

struct Sizes {
  int count;
};

kernel void copies(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]], device float* y [[buffer(2)]],
                   uint3 group [[threadgroup_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
  const int i = int(group.x * 64 + t);
  if (i < p.count) y[i] = x[i];
}

kernel void reads_behind_the_end(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                 device float* y [[buffer(2)]], uint t [[thread_index_in_threadgroup]]) {
  if (int(t) < p.count) y[t] = x[t + 1];
}

kernel void writes_before_the_start(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                    device float* y [[buffer(2)]], uint t [[thread_index_in_threadgroup]]) {
  if (int(t) < p.count) y[int(t) - 1] = x[t];
}

kernel void writes_to_its_input(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                device float* y [[buffer(2)]], uint t [[thread_index_in_threadgroup]]) {
  if (int(t) < p.count) ((device float*)x)[t] = y[t];
}

kernel void reads_a_word_across(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                device float* y [[buffer(2)]], uint t [[thread_index_in_threadgroup]]) {
  if (int(t) < p.count - 1) y[t] = *(device const float*)((device const uchar*)(x + t) + 2);
}

kernel void turns_around(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                         device float* y [[buffer(2)]], threadgroup float* s [[threadgroup(0)]],
                         uint t [[thread_index_in_threadgroup]]) {
  s[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = s[63 - t];
}

kernel void swaps_without_a_barrier(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                    device float* y [[buffer(2)]], threadgroup float* s [[threadgroup(0)]],
                                    uint t [[thread_index_in_threadgroup]]) {
  s[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  s[t] = s[t ^ 1];
  y[t] = s[t];
}

kernel void writes_after_others_read(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                     device float* y [[buffer(2)]], threadgroup float* s [[threadgroup(0)]],
                                     uint t [[thread_index_in_threadgroup]]) {
  s[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = s[0];
  if (t == 0) s[t] = 0.0f;
}

kernel void orders_other_memory(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                device float* y [[buffer(2)]], threadgroup float* s [[threadgroup(0)]],
                                uint t [[thread_index_in_threadgroup]]) {
  y[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  s[t] = y[63 - t];
}

kernel void orders_its_simdgroup_only(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                      device float* y [[buffer(2)]], threadgroup float* s [[threadgroup(0)]],
                                      uint t [[thread_index_in_threadgroup]]) {
  s[t] = 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  s[t] = x[t];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = s[63 - t];
}

kernel void turns_simdgroups_around(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                    device float* y [[buffer(2)]], threadgroup float* s [[threadgroup(0)]],
                                    uint t [[thread_index_in_threadgroup]]) {
  s[t] = x[t];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = s[t ^ 31];
}

kernel void all_write_the_same(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                               device float* y [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                               uint t [[thread_index_in_threadgroup]]) {
  if (t == 0) y[0] = float(group.x);
}

kernel void reads_what_nobody_wrote(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                    device float* y [[buffer(2)]], threadgroup float* s [[threadgroup(0)]],
                                    uint t [[thread_index_in_threadgroup]]) {
  if (t < 63) s[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = s[63 - t];
}

kernel void writes_past_its_threadgroup_memory(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                               device float* y [[buffer(2)]], threadgroup float* s [[threadgroup(0)]],
                                               uint t [[thread_index_in_threadgroup]]) {
  s[t + 1] = x[t];
}

kernel void half_reach_the_barrier(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                   device float* y [[buffer(2)]], threadgroup float* s [[threadgroup(0)]],
                                   uint t [[thread_index_in_threadgroup]]) {
  if (t < 32) threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = x[t];
}

kernel void reach_different_barriers(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                     device float* y [[buffer(2)]], threadgroup float* s [[threadgroup(0)]],
                                     uint t [[thread_index_in_threadgroup]]) {
  s[t] = x[t];
  if (t < 32) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[t] = s[t];
  } else {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[t] = -s[t];
  }
}

kernel void some_lanes_sum(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                           device float* y [[buffer(2)]], uint t [[thread_index_in_threadgroup]]) {
  float sum = x[t];
  if (t != 5) sum = simd_sum(sum);
  y[t] = sum;
}

kernel void multiplies_an_unset_matrix(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                       device float* y [[buffer(2)]], uint t [[thread_index_in_threadgroup]]) {
  simdgroup_float8x8 a;
  simdgroup_float8x8 sum;
  simdgroup_load(a, x);
  simdgroup_multiply_accumulate(sum, a, a, sum);
  if (t < 32) simdgroup_store(sum, y);
}

kernel void transposes_in_place(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                device float* y [[buffer(2)]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  if (simdgroup > 0) return;
  simdgroup_float8x8 a;
  simdgroup_load(a, y, 8, 0, true);
  simdgroup_barrier(mem_flags::mem_device);
  simdgroup_store(a, y);
}

kernel void copies_in_place_without_a_barrier(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                              device float* y [[buffer(2)]],
                                              uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  if (simdgroup > 0) return;
  simdgroup_float8x8 a;
  simdgroup_load(a, y);
  simdgroup_store(a, y);
}

kernel void counts_with_atomics(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                device atomic_uint* y [[buffer(2)]], uint t [[thread_index_in_threadgroup]]) {
  if (x[t] > 0.0f) atomic_fetch_add_explicit(y, 1u, memory_order_relaxed);
}

kernel void counts_without_atomics(constant Sizes& p [[buffer(0)]], device const float* x [[buffer(1)]],
                                   device uint* y [[buffer(2)]], uint t [[thread_index_in_threadgroup]]) {
  if (x[t] > 0.0f) y[0] += 1u;
}
