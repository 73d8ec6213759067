#pragma once

// A tile of one head's state in the registers of a warp, and the rule's step on it: all K columns of kWarpV rows of the
// matrix [V,K]. kLanesK lanes share a row, so that its sums take few shuffles; each lane holds kSteps runs of kRun
// neighboring k's of kColumns rows. Four neighbors are one access of 16 bytes (8 for 16-bit states), in both layouts.

#include "cuda/common/tensor_view.h"
#include "cuda/common/warp.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::cu {

// A row of q or k in shared memory.
struct SharedRow {
  const float* row;
  template <int kRun>
  __device__ void read(int, int k, float (&x)[kRun]) const {
    if constexpr (kRun == 4) {
      const float4 four = *reinterpret_cast<const float4*>(row + k);
      x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else {
#pragma unroll
      for (int i = 0; i < kRun; ++i) x[i] = row[k + i];
    }
  }
};

// A token's scalars. q_factor and k_factor are the norm factors of q and k, not yet applied to them.
struct TokenScalars {
  float decay;
  float beta;
  float q_factor;
  float k_factor;
};

// kNarrow: if not 0, kNarrowLanes lanes of [V,K] share a row and each has kNarrow rows: fewer registers, a lower
// latency of a token.
template <int kK, StateLayout kLayout, int kNarrow = 0, int kNarrowLanes = 8>
struct StateTile {
  static constexpr bool kVK = kLayout == StateLayout::kVK;
  static constexpr int kLanesK = (kNarrow > 0 ? kNarrowLanes : kVK ? 4 : 8) * (kK >= 192 ? 2 : 1);
  static constexpr int kLanesV = kWarpSize / kLanesK;
  static constexpr int kColumns = kNarrow > 0 ? kNarrow : (kVK ? 2 : 4);
  static constexpr int kWarpV = kLanesV * kColumns;  // 16, 8 for the largest K; fewer if narrow. V is a multiple of it
  static constexpr int kRun = kK / kLanesK < 4 ? kK / kLanesK : 4;
  static constexpr int kSteps = kK / (kLanesK * kRun);
  static_assert(kSteps * kLanesK * kRun == kK && (kRun == 4 || !kVK) && (kVK || kNarrow == 0));

  float s[kSteps][kRun][kColumns];

  __device__ static int lane_k() { return static_cast<int>(threadIdx.x) % kLanesK; }
  __device__ static int lane_v() { return static_cast<int>(threadIdx.x) % kWarpSize / kLanesK; }
  // The first k of the lane's run, and the row of its column, from the tile's first.
  __device__ static int k_of(int step) { return (step * kLanesK + lane_k()) * kRun; }
  __device__ static int v_of(int column) { return kVK ? column * kLanesV + lane_v() : lane_v() * kColumns + column; }

  template <class Body>
  __device__ void for_each(Body body) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) body(s[j][i][c]);
      }
    }
  }
  __device__ void clear() {
    for_each([](float& x) { x = 0.0F; });
  }

  // The tile of rows v and on. A head's matrix begins at `offset` in the pool, in its layout, with `stride` elements
  // from row to row.
  __device__ void load(const Elements& pool, std::int64_t offset, std::int64_t stride, int v) {
    with_type(pool.dtype, [&]<class T>(T) {
      const T* base = static_cast<const T*>(pool.data) + offset;
      if (pool.fours) {
        load_fours(base, stride, v);
      } else {
        for_each_four(stride, v, [&](std::int64_t at, auto element) {
#pragma unroll
          for (int i = 0; i < 4; ++i) element(i) = to_f32(base[at + i]);
        });
      }
    });
  }

  __device__ void store(const Elements& pool, std::int64_t offset, std::int64_t stride, int v) {
    with_type(pool.dtype, [&]<class T>(T) {
      T* base = static_cast<T*>(pool.data) + offset;
      if (pool.fours) {
        store_fours(base, stride, v);
      } else {
        for_each_four(stride, v, [&](std::int64_t at, auto element) {
#pragma unroll
          for (int i = 0; i < 4; ++i) base[at + i] = from_f32<T>(element(i));
        });
      }
    });
  }

  // The same for elements of type T that can be accessed four at a time; `state` is the head's matrix.
  template <class T>
  __device__ void load_fours(const T* state, std::int64_t stride, int v) {
    for_each_four(stride, v, [&](std::int64_t at, auto element) {
      const float4 x = load_four(state + at);
      element(0) = x.x, element(1) = x.y, element(2) = x.z, element(3) = x.w;
    });
  }
  template <class T>
  __device__ void store_fours(T* state, std::int64_t stride, int v) {
    for_each_four(stride, v, [&](std::int64_t at, auto element) {
      store_four(state + at, {element(0), element(1), element(2), element(3)});
    });
  }
  template <class T>
  __device__ void store_fours_streaming(T* state, std::int64_t stride, int v) {
    for_each_four(stride, v, [&](std::int64_t at, auto element) {
      store_four_streaming(state + at, {element(0), element(1), element(2), element(3)});
    });
  }

  // One token: S' = decay S; d = beta (v - S' k); S = S' + d k^T; o = S q, of the lane's rows. Both products use the
  // old state, in one pass: S q = decay (S_old q) + d (k . q). Row::read(step, k, x) reads the run of a step, which
  // begins at k.
  template <class Row>
  __device__ void step(const Row& k, const Row& q, const TokenScalars& token, const float (&v)[kColumns],
                       float (&o)[kColumns]) {
    float with_k[kColumns] = {};
    float with_q[kColumns] = {};
    float k_dot_q = 0.0F;
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      float keys[kRun];
      float queries[kRun];
      k.read(j, k_of(j), keys);
      q.read(j, k_of(j), queries);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        k_dot_q = fmaf(keys[i], queries[i], k_dot_q);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          with_k[c] = fmaf(s[j][i][c], keys[i], with_k[c]);
          with_q[c] = fmaf(s[j][i][c], queries[i], with_q[c]);
        }
      }
    }
    k_dot_q = warp_sum<kLanesK>(k_dot_q) * token.q_factor;
    const float k_decay = token.decay * token.k_factor;
    const float q_decay = token.decay * token.q_factor;
    float d[kColumns];  // times the factor of k
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      d[c] = token.k_factor * token.beta * (v[c] - k_decay * warp_sum<kLanesK>(with_k[c]));
      o[c] = fmaf(q_decay, warp_sum<kLanesK>(with_q[c]), d[c] * k_dot_q);
    }
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      float keys[kRun];
      k.read(j, k_of(j), keys);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) s[j][i][c] = fmaf(d[c], keys[i], token.decay * s[j][i][c]);
      }
    }
  }

 private:
  // Calls body(offset, element) for every four neighbors in memory, which are element(0..3) by reference.
  template <class Body>
  __device__ void for_each_four(std::int64_t stride, int v, Body body) {
    // Keeps the compiler from holding the addresses of all rows in registers.
    asm volatile("" : "+l"(stride));
    if constexpr (kVK) {
      // Along the rows: consecutive accesses are neighbors in memory.
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int j = 0; j < kSteps; ++j) {
          body((v + v_of(c)) * stride + k_of(j), [&](int i) -> float& { return s[j][i][c]; });
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
          body((k_of(j) + i) * stride + v + v_of(0), [&](int c) -> float& { return s[j][i][c]; });
        }
      }
    }
  }
};

// A lane's elements of one row of q or k.
template <class Tile>
struct RegisterRow {
  float x[Tile::kSteps][4];

  __device__ void read(int step, int, float (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = x[step][i];
  }
};

}  // namespace thalweg::cu
