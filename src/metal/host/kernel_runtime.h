#pragma once

// The functions that compiled kernels call. `line` is the call's line in the .metal file: all threads of a barrier or
// simdgroup operation must call it from the same line.

extern "C" {

enum { kMemNone = 0, kMemDevice = 1, kMemThreadgroup = 2 };

void thalweg_threadgroup_barrier(unsigned flags, int line);
void thalweg_simdgroup_barrier(unsigned flags, int line);

// The value of lane `from` of the simdgroup.
unsigned thalweg_simd_shuffle(unsigned value, unsigned from, int line);
float thalweg_simd_sum(float value, int line);
unsigned thalweg_simd_sum_uint(unsigned value, int line);
float thalweg_simd_max(float value, int line);
// Sums over the lanes before this one, and this one if `inclusive`.
float thalweg_simd_prefix_sum(float value, bool inclusive, int line);
unsigned thalweg_simd_prefix_sum_uint(unsigned value, bool inclusive, int line);

// result = a b + c, 8 x 8. A lane holds elements (lane / 4, 2 (lane % 4)) and the one to its right.
void thalweg_simdgroup_multiply(const float a[2], const float b[2], const float c[2], float result[2], int line);
unsigned thalweg_lane();
// Marks the accesses up to the next call as a matrix's loads (1) or stores (2), or as the thread's own (0). Metal does
// not specify which lane holds which element, so that a load and a store of one element count as those of different
// lanes.
void thalweg_matrix_access(unsigned kind);

// Each returns the previous value of the 32-bit word.
unsigned thalweg_atomic_add(void* address, unsigned value);
unsigned thalweg_atomic_or(void* address, unsigned value);
unsigned thalweg_atomic_load(const void* address);
void thalweg_atomic_store(void* address, unsigned value);

}  // extern "C"
