#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thalweg/dtype.h"

namespace thalweg::cpu {

// The SIMD building blocks of the CPU kernels, one set per instruction set. These functions run per row or per tile;
// the kernels around them, plain C++, run per head, token or expert. All arithmetic is f32, and the order of additions
// depends on the instruction set alone.
struct VectorOps {
  // Rows of F32, F16, BF16 or Q8_0 to f32, and back but to Q8_0 (nearest, ties to even).
  void (*load)(DType dtype, const void* from, std::int64_t n, float* to);
  void (*store)(DType dtype, const float* from, std::int64_t n, void* to);
  void (*round_to_bf16)(float* x, std::int64_t n);  // in place

  float (*dot)(const float* a, const float* b, std::int64_t n);
  void (*axpy)(float alpha, const float* x, std::int64_t n, float* y);                  // y += alpha x
  void (*scale)(float alpha, const float* x, std::int64_t n, float* y);                 // y = alpha x
  void (*multiply)(const float* a, const float* b, std::int64_t n, float* y);           // y = a b, elementwise
  void (*silu_multiply)(const float* gate, const float* up, std::int64_t n, float* y);  // y = silu(gate) up; null: 1
  float (*exp_minus_max)(const float* x, std::int64_t n, float* y);  // y = exp(x - max x); returns its sum

  // y[j] *= exp(top - x[j]) where top <= x[j]; exponents above 0 count as 0.
  void (*multiply_by_decay)(float top, const float* x, std::int64_t n, float* y);

  // c[i,:] (=, or += if accumulate) sum_k a(i,k) b[k,:], a(i,k) = a[i*a_row + k*a_column]; n is a multiple of 16.
  void (*gemm)(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t a_row,
               std::int64_t a_column, const float* b, std::int64_t b_row, float* c, std::int64_t c_row,
               bool accumulate);
  // y[i,j] = sum_k a[i,k] b[j,k]: rows against rows, any sizes.
  void (*gemm_rows)(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t a_row, const float* b,
                    std::int64_t b_row, float* y, std::int64_t y_row);
  // to[j,i] = from[i,j]
  void (*transpose)(std::int64_t rows, std::int64_t columns, const float* from, std::int64_t from_row, float* to,
                    std::int64_t to_row);

  // Multiply-adds on registers alone, to measure the processor's peak. Returns the number of flops.
  double (*fma_burst)(std::int64_t rounds, float* sink);

  // One token of the gated delta rule on a contiguous state [V,K]: o = S_new q.
  void (*delta_step)(float* state, std::int64_t v_size, std::int64_t k_size, const float* q, const float* k,
                     const float* v, float decay, float beta, float* o);
};

// The functions of the selected instruction set.
const VectorOps& vector_ops();

std::vector<std::string> instruction_sets();         // that this machine can run, best first
bool select_instruction_set(std::string_view name);  // empty: the best; false if the machine cannot run it

}  // namespace thalweg::cpu
