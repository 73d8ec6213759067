#pragma once

// A tile of one head's state in the registers of a warp, and the rule's step on it: all K columns of kWarpV rows of the
// matrix [V,K]. kLanesK lanes share a row, so that its sums take few shuffles; each lane holds kSteps runs of kRun
// neighboring k's of kColumns rows. Four neighbors are one access of 16 bytes (8 for 16-bit states), in both layouts;
// in runs of eight of bf16 so are eight.

#include <algorithm>

#include "cuda/common/eights.h"
#include "cuda/common/tensor_view.h"
#include "cuda/common/warp.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::cu {

// A row of q or k in shared memory.
struct SharedRow {
  const float* row;
  template <int kRun>
  __device__ void read(int, int k, float (&x)[kRun]) const {
    if constexpr (kRun % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kRun; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(row + k + i);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
      }
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

// kNarrow: if not 0, kNarrowLanes lanes of [V,K] share a row and each has kNarrow rows, in runs of kNarrowRun: fewer
// registers, a lower latency of a token.
template <int kK, StateLayout kLayout, int kNarrow = 0, int kNarrowLanes = 8, int kNarrowRun = 4>
struct StateTile {
  static constexpr bool kVK = kLayout == StateLayout::kVK;
  static constexpr int kLanesK = (kNarrow > 0 ? kNarrowLanes : kVK ? 4 : 8) * (kK >= 192 ? 2 : 1);
  static constexpr int kLanesV = kWarpSize / kLanesK;
  static constexpr int kColumns = kNarrow > 0 ? kNarrow : (kVK ? 2 : 4);
  static constexpr int kWarpV = kLanesV * kColumns;  // 16, 8 for the largest K; fewer if narrow. V is a multiple of it
  static constexpr int kRun = std::min(kK / kLanesK, kNarrowRun);
  static constexpr int kSteps = kK / (kLanesK * kRun);
  static constexpr int kAccess = kVK ? kRun : 4;  // elements
  static_assert(kSteps * kLanesK * kRun == kK && (kRun % 4 == 0 || !kVK) && (kVK || kNarrow == 0));

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
        load_aligned(base, stride, v);
      } else {
        for_each_access(stride, v, [&](std::int64_t at, auto element) {
#pragma unroll
          for (int i = 0; i < kAccess; ++i) element(i) = to_f32(base[at + i]);
        });
      }
    });
  }

  __device__ void store(const Elements& pool, std::int64_t offset, std::int64_t stride, int v) {
    with_type(pool.dtype, [&]<class T>(T) {
      T* base = static_cast<T*>(pool.data) + offset;
      if (pool.fours) {
        store_aligned(base, stride, v);
      } else {
        for_each_access(stride, v, [&](std::int64_t at, auto element) {
#pragma unroll
          for (int i = 0; i < kAccess; ++i) base[at + i] = from_f32<T>(element(i));
        });
      }
    });
  }

  // The same for elements of type T of which kAccess can be accessed at once; `state` is the head's matrix.
  template <class T>
  __device__ void load_aligned(const T* state, std::int64_t stride, int v) {
    for_each_access(stride, v, [&](std::int64_t at, auto element) {
      if constexpr (kAccess == 8) {
        const Eight x = load_eight(state + at);
#pragma unroll
        for (int i = 0; i < 8; ++i) element(i) = x.x[i];
      } else {
        const float4 x = load_four(state + at);
        element(0) = x.x, element(1) = x.y, element(2) = x.z, element(3) = x.w;
      }
    });
  }
  template <class T>
  __device__ void store_aligned(T* state, std::int64_t stride, int v) {
    for_each_access(stride, v, [&](std::int64_t at, auto element) {
      if constexpr (kAccess == 8) {
        store_eight(state + at, eight(element));
      } else {
        store_four(state + at, {element(0), element(1), element(2), element(3)});
      }
    });
  }
  template <class T>
  __device__ void store_streaming(T* state, std::int64_t stride, int v) {
    for_each_access(stride, v, [&](std::int64_t at, auto element) {
      if constexpr (kAccess == 8) {
        store_eight_streaming(state + at, eight(element));
      } else {
        store_four_streaming(state + at, {element(0), element(1), element(2), element(3)});
      }
    });
  }

  // The sum of one column over every kFirst-th lane of a row: lane i of them returns column i / kFirst % kColumns.
  template <int kFirst>
  __device__ static float sum_column(float (&columns)[kColumns]) {
#pragma unroll
    for (int distance = kFirst, left = kColumns; left > 1; distance *= 2, left /= 2) {
      const bool odd = (static_cast<int>(threadIdx.x) & distance) != 0;
#pragma unroll
      for (int c = 0; c < left / 2; ++c) {
        const float mine = odd ? columns[2 * c + 1] : columns[2 * c];
        columns[c] = mine + __shfl_xor_sync(0xFFFFFFFFU, odd ? columns[2 * c] : columns[2 * c + 1], distance);
      }
    }
    float sum = columns[0];
#pragma unroll
    for (int distance = kFirst * kColumns; distance < kLanesK; distance *= 2) {
      sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
    }
    return sum;
  }

  // One token: S' = decay S; d = beta (v - S' k); S = S' + d k^T; o = S q, of the lane's rows. Both products use the
  // old state, in one pass: S q = decay (S_old q) + d (k . q). Row::read(step, k, x) reads the run of a step, which
  // begins at k.
  template <class Row>
  __device__ void step(const Row& k, const Row& q, const TokenScalars& token, const float (&v)[kColumns],
                       float (&o)[kColumns]) {
    Products sums;
    multiply(k, q, sums);
    const float k_dot_q = warp_sum<kLanesK>(sums.k_dot_q) * token.q_factor;
    const float k_decay = token.decay * token.k_factor;
    const float q_decay = token.decay * token.q_factor;
    float d[kColumns];  // times the factor of k
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      d[c] = token.k_factor * token.beta * (v[c] - k_decay * warp_sum<kLanesK>(sums.with_k[c]));
      o[c] = fmaf(q_decay, warp_sum<kLanesK>(sums.with_q[c]), d[c] * k_dot_q);
    }
    update(k, token.decay, d);
  }

  // The same in fewer shuffles, each lane summing for one row, if a row has 2 kColumns lanes at least.
  // The lane's row, from the tile's first. Two lanes or more have the same.
  __device__ static int own_row() { return v_of(lane_k() / 2 % kColumns); }
  // Whether the lane is the first of those.
  __device__ static bool owns_row() { return lane_k() < 2 * kColumns && lane_k() % 2 == 0; }
  // v is of the lane's row; returns its o.
  template <class Row>
  __device__ float step(const Row& k, const Row& q, const TokenScalars& token, float v) {
    static_assert(kLanesK >= 2 * kColumns);
    Products sums;
    multiply(k, q, sums);
    const float k_dot_q = warp_sum<kLanesK>(sums.k_dot_q) * token.q_factor;
    float pairs[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) pairs[c] = sum_two_of_pairs({sums.with_k[c], sums.with_q[c]});
    const float mine = sum_column<2>(pairs);
    const float other = __shfl_xor_sync(0xFFFFFFFFU, mine, 1);
    const bool has_q = lane_k() % 2 == 1;
    const float own_d = token.k_factor * token.beta * (v - token.decay * token.k_factor * (has_q ? other : mine));
    float d[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) d[c] = __shfl_sync(0xFFFFFFFFU, own_d, 2 * c, kLanesK);
    update(k, token.decay, d);
    return fmaf(token.decay * token.q_factor, has_q ? mine : other, own_d * k_dot_q);
  }

 private:
  // Over the lane's elements of its rows.
  struct Products {
    float with_k[kColumns] = {};
    float with_q[kColumns] = {};
    float k_dot_q = 0.0F;
  };
  template <class Row>
  __device__ void multiply(const Row& k, const Row& q, Products& sums) const {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      float keys[kRun];
      float queries[kRun];
      k.read(j, k_of(j), keys);
      q.read(j, k_of(j), queries);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        sums.k_dot_q = fmaf(keys[i], queries[i], sums.k_dot_q);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          sums.with_k[c] = fmaf(s[j][i][c], keys[i], sums.with_k[c]);
          sums.with_q[c] = fmaf(s[j][i][c], queries[i], sums.with_q[c]);
        }
      }
    }
  }
  // S = decay S + d k^T
  template <class Row>
  __device__ void update(const Row& k, float decay, const float (&d)[kColumns]) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      float keys[kRun];
      k.read(j, k_of(j), keys);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) s[j][i][c] = fmaf(d[c], keys[i], decay * s[j][i][c]);
      }
    }
  }
  template <class Element>
  __device__ static Eight eight(Element element) {
    return {{element(0), element(1), element(2), element(3), element(4), element(5), element(6), element(7)}};
  }
  // Calls body(offset, element) for every kAccess neighbors in memory, which are element(0), ... by reference.
  template <class Body>
  __device__ void for_each_access(std::int64_t stride, int v, Body body) {
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
  float x[Tile::kSteps][Tile::kRun];

  __device__ void read(int step, int, float (&to)[Tile::kRun]) const {
#pragma unroll
    for (int i = 0; i < Tile::kRun; ++i) to[i] = x[step][i];
  }
};

}  // namespace thalweg::cu
