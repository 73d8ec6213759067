#pragma once

// What compiled kernels call in the executor. `line` is the call's place in the .metal file: threads that meet must
// meet at the same line.

extern "C" {

enum { kMemNone = 0, kMemDevice = 1, kMemThreadgroup = 2 };

void thalweg_threadgroup_barrier(unsigned flags, int line);
void thalweg_simdgroup_barrier(unsigned flags, int line);

// What lane `from` of the simdgroup gave.
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
// Accesses up to the next call are those of a matrix: loads (1), stores (2), or of the thread itself again (0). Metal
// does not say which lane has which element, so that a load and a store of one element count as two lanes'.
void thalweg_matrix_access(unsigned kind);

// These return what was in the 32-bit word before.
unsigned thalweg_atomic_add(void* address, unsigned value);
unsigned thalweg_atomic_or(void* address, unsigned value);
unsigned thalweg_atomic_load(const void* address);
void thalweg_atomic_store(void* address, unsigned value);

}  // extern "C"
