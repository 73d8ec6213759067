#pragma once

// f32 matrix products by blocks of 256 threads, for the stages of the chunk form: sum[M,N] += a[M,depth] b[depth,N],
// both operands given element by element and staged in shared memory 32 columns of a and rows of b at a time.

namespace thalweg::cu {

constexpr int kProductThreads = 256;
constexpr int kProductDepth = 32;

// A thread has rows first_row() + 16 i and columns first_column() + 16 j of the product.
template <int kM, int kN>
struct BlockProduct {
  static constexpr int kRows = kM / 16;
  static constexpr int kColumns = kN / 16;
  static constexpr int kPitch = kProductDepth + 1;

  // Shared memory of one product at a time.
  struct Panels {
    float a[kM * kPitch];
    float b[kN * kPitch];
  };

  float sum[kRows][kColumns] = {};

  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / 16; }
  __device__ static int first_column() { return static_cast<int>(threadIdx.x) % 16; }

  // a(row, d) and b(d, column) return 0 outside of their matrices. kByColumn: b's memory runs along the depth.
  template <bool kByColumn, class A, class B>
  __device__ void add(Panels& panels, int depth, A a, B b) {
    for (int begin = 0; begin < depth; begin += kProductDepth) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kM * kProductDepth; i += kProductThreads) {
        const int d = i % kProductDepth;
        panels.a[i / kProductDepth * kPitch + d] = begin + d < depth ? a(i / kProductDepth, begin + d) : 0.0F;
      }
      for (int i = static_cast<int>(threadIdx.x); i < kN * kProductDepth; i += kProductThreads) {
        const int d = kByColumn ? i % kProductDepth : i / kN;
        const int column = kByColumn ? i / kProductDepth : i % kN;
        panels.b[column * kPitch + d] = begin + d < depth ? b(begin + d, column) : 0.0F;
      }
      __syncthreads();
#pragma unroll 8
      for (int d = 0; d < kProductDepth; ++d) {
        float left[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) left[i] = panels.a[(first_row() + 16 * i) * kPitch + d];
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const float right = panels.b[(first_column() + 16 * j) * kPitch + d];
#pragma unroll
          for (int i = 0; i < kRows; ++i) sum[i][j] = fmaf(left[i], right, sum[i][j]);
        }
      }
    }
  }

  // Calls body(row, column, value) for each of the thread's elements, which it may change.
  template <class Body>
  __device__ void for_each(Body body) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) body(first_row() + 16 * i, first_column() + 16 * j, sum[i][j]);
    }
  }
};

}  // namespace thalweg::cu
