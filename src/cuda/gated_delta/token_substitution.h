#pragma once

// Up to eight tokens at once in f32, by a warp with some rows of a state [V,K] in registers. S is the state before the
// first token, D_t the product of the decays up to token t, c the last token that changes the state:
//
//   w_t = v_t - D_t S k_t
//   d_t = beta_t (w_t - sum_{s<t} D_t/D_s (k_t . k_s) d_s), so d = T w
//   o_t = D_t S q_t + sum_{s<=t} D_t/D_s (q_t . k_s) d_s
//   S   = D_c S + sum_{s<=c} D_c/D_s d_s k_s^T
//
// The products with S depend on no other token, S changes once, and T is the same for all rows of a value head, as are
// the matrices by which w becomes outputs and changes of S. Decays between two tokens are products, not quotients: a
// decay may be 0.

#include "cuda/gated_delta/state_tile.h"
#include "cuda/gated_delta/token_products.h"

namespace thalweg::cu {

// Of a value head. Rows and columns are tokens; those that a sequence does not have are 0.
struct TokenMatrices {
  float outputs[kTogether][kTogether];  // from w to o_t - D_t S q_t
  float changes[kTogether][kTogether];  // from w to D_c/D_s d_s
  float decays[kTogether];              // D_t
  float decay;                          // D_c
  float unused[3];
};
static_assert(sizeof(TokenMatrices) % sizeof(float4) == 0);

using TokenSquare = float[kTogether][kTogether];

// The product of row t of a lower triangular matrix with x. Elements after t are not multiplied by 0: of a later token
// they may be infinite.
__device__ inline float multiply_row(const float (&row)[kTogether], const float (&x)[kTogether], int t) {
  float sum = 0.0F;
#pragma unroll
  for (int s = 0; s < kTogether; ++s) sum = s <= t ? fmaf(row[s], x[s], sum) : sum;
  return sum;
}

// Eight neighbors in shared memory.
__device__ inline void read_eight(const float* from, float (&x)[kTogether]) { SharedRow{from}.read(0, 0, x); }

// Products of rows q_t and k_t with the rows of k, `pitch` floats apart: to with_q[t][s] and with_k[t][s], s <= t; by a
// warp. Four lanes share a product.
template <int kK>
__device__ inline void multiply_rows(const float* q, const float* k, int pitch, int t, TokenSquare& with_q,
                                     TokenSquare& with_k) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int s = lane / 4;
  const int first = lane % 4 * 4;
  float q_sums[4] = {};
  float k_sums[4] = {};
  const auto add = [](const float4& a, const float4& b, float(&sums)[4]) {
    sums[0] = fmaf(a.x, b.x, sums[0]), sums[1] = fmaf(a.y, b.y, sums[1]);
    sums[2] = fmaf(a.z, b.z, sums[2]), sums[3] = fmaf(a.w, b.w, sums[3]);
  };
#pragma unroll
  for (int j = first; j < kK; j += 16) {
    const float4 key = *reinterpret_cast<const float4*>(k + min(s, t) * pitch + j);
    add(*reinterpret_cast<const float4*>(q + t * pitch + j), key, q_sums);
    add(*reinterpret_cast<const float4*>(k + t * pitch + j), key, k_sums);
  }
  const float of_q = warp_sum<4>(q_sums[0] + q_sums[1] + (q_sums[2] + q_sums[3]));
  const float of_k = warp_sum<4>(k_sums[0] + k_sums[1] + (k_sums[2] + k_sums[3]));
  if (lane % 4 == 0) with_q[t][s] = of_q, with_k[t][s] = of_k;
}

// What the matrices of a value head are made of, in shared memory.
struct TokenGates {
  float decay[kTogether];  // exp(g)
  float beta[kTogether];
};
struct MatrixScratch {
  TokenSquare with_k, with_q;
};

// D_t of the tokens, by a warp.
__device__ inline void find_decays(const TokenGates& gates, int count, float (&decays)[kTogether]) {
  const int t = static_cast<int>(threadIdx.x) % kWarpSize;
  if (t >= kTogether) return;
  float decay = t < count ? 1.0F : 0.0F;
#pragma unroll
  for (int s = 0; s < kTogether; ++s) {
    if (s <= t && t < count) decay *= gates.decay[s];
  }
  decays[t] = decay;
}

// The rest of the matrices, by a warp. with_k and with_q are products of k_t and q_t with k_s; `committed` tokens
// change the state.
__device__ inline void find_matrices(const TokenSquare& with_k, const TokenSquare& with_q, const TokenGates& gates,
                                     int count, int committed, MatrixScratch& scratch, TokenMatrices& matrices) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int s = lane % kTogether;  // the lane's column
  constexpr int kParts = kWarpSize / kTogether;
  constexpr int kRows = kTogether / kParts;
  const auto row = [&](int i) { return lane / kTogether + i * kParts; };  // the lane's rows
  float decays[kTogether];
  read_eight(gates.decay, decays);
  float decay = 1.0F;        // D_t/D_s
  float to_end = 0.0F;       // D_c/D_s
  float to_row[kRows] = {};  // the lane's D_t/D_s
#pragma unroll
  for (int t = 0; t < kTogether; ++t) {
    if (t > s && t < count) decay *= decays[t];
    if (t + 1 == committed) to_end = decay;
#pragma unroll
    for (int i = 0; i < kRows; ++i) to_row[i] = t == row(i) ? decay : to_row[i];
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int t = row(i);
    const bool is_token = t < count;
    scratch.with_k[t][s] = t > s && is_token ? gates.beta[t] * to_row[i] * with_k[t][s] : 0.0F;
    scratch.with_q[t][s] = t >= s && is_token ? to_row[i] * with_q[t][s] : 0.0F;
  }
  if (lane == 0) matrices.decay = to_end * decays[0];
  const float beta = s < count ? gates.beta[s] : 0.0F;
  __syncwarp();
  float solution[kTogether];  // the column of T
#pragma unroll
  for (int t = 0; t < kTogether; ++t) {
    float factors[kTogether];
    read_eight(scratch.with_k[t], factors);
    solution[t] = t == s ? beta : 0.0F;
#pragma unroll
    for (int r = 0; r < t; ++r) solution[t] = fmaf(-factors[r], solution[r], solution[t]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int t = row(i);
    const float row_to_end = __shfl_sync(0xFFFFFFFFU, to_end, t);
    float factors[kTogether];
    read_eight(scratch.with_q[t], factors);
    float own = 0.0F;
#pragma unroll
    for (int r = 0; r < kTogether; ++r) own = r == t ? solution[r] : own;
    matrices.changes[t][s] = t < committed ? row_to_end * own : 0.0F;
    matrices.outputs[t][s] = multiply_row(factors, solution, t);
  }
}

// For a warp with a tile of eight rows. kUnroll: tokens whose products it computes at once.
template <int kK, class Tile, int kUnroll>
struct Substitution {
  static constexpr int kColumns = Tile::kColumns;
  static constexpr int kRows = 8;
  static_assert(Tile::kVK && Tile::kWarpV == kRows && Tile::kLanesK >= 2 * kColumns);

  // The warp's own shared memory.
  struct Scratch {
    float w[kRows][kTogether];
    float with_q[kTogether][kRows];   // D_t S q_t
    float changes[kTogether][kRows];  // D_c/D_s d_s, rows in the order of the lanes that have them
  };

  static constexpr int kPitch = 2 * kK + 16;  // no two neighboring tokens in the same banks

  const float* keys;  // [count,kPitch]: q, then k
  const TokenMatrices& matrices;
  Scratch& scratch;
  int count;
  int first_output;  // tokens before it have none
  int committed;     // tokens that change the state
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;

  // v(t, row) is the value of a row.
  template <class Values>
  __device__ __forceinline__ void multiply(const Tile& tile, Values v) const {
    const int lane_k = Tile::lane_k();
    // Where the lane's sums go: those with k alone, and those with k or q.
    const int row = Tile::v_of(lane_k % kColumns);
    const int row_of_both = Tile::v_of(lane_k / 2 % kColumns);
#pragma unroll
    for (int i = lane; i < kRows * kTogether; i += kWarpSize) scratch.w[i / kTogether][i % kTogether] = 0.0F;
    __syncwarp();
#pragma unroll kUnroll
    for (int t = 0; t < first_output; ++t) {
      float sums[kColumns] = {};
      add_products(tile, read_row(t, kK), sums);
      scratch.w[row][t] = fmaf(-matrices.decays[t], Tile::template sum_column<1>(sums), v(t, row));
    }
#pragma unroll kUnroll
    for (int t = first_output; t < count; ++t) {
      float with_k[kColumns] = {};
      float with_q[kColumns] = {};
      add_products(tile, read_row(t, kK), with_k);
      add_products(tile, read_row(t, 0), with_q);
      float sums[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sums[c] = sum_two_of_pairs({with_k[c], with_q[c]});
      const float sum = matrices.decays[t] * Tile::template sum_column<2>(sums);
      if (lane_k % 2 == 0) {
        scratch.w[row_of_both][t] = v(t, row_of_both) - sum;
      } else {
        scratch.with_q[t][row_of_both] = sum;
      }
    }
    __syncwarp();
  }

  // Calls put(t, row, output).
  template <class Put>
  __device__ __forceinline__ void solve(Put put) const {
    const int row = lane % kRows;
    // In the order of v_of().
    const int place = row % Tile::kLanesV * kColumns + row / Tile::kLanesV;
    float w[kTogether];
    read_eight(scratch.w[row], w);
#pragma unroll
    for (int t = lane / kRows; t < kTogether; t += kWarpSize / kRows) {
      if (t >= count) break;
      float factors[kTogether];
      if (t < committed) {
        read_eight(matrices.changes[t], factors);
        scratch.changes[t][place] = multiply_row(factors, w, t);
      }
      if (t >= first_output) {
        read_eight(matrices.outputs[t], factors);
        put(t, row, scratch.with_q[t][row] + multiply_row(factors, w, t));
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ void update(Tile& tile) const {
    if (committed == 0) return;
    const float decay = matrices.decay;
    tile.for_each([&](float& x) { x *= decay; });
#pragma unroll kUnroll
    for (int s = 0; s < committed; ++s) {
      float d[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) d[c] = scratch.changes[s][Tile::lane_v() * kColumns + c];
      const RegisterRow<Tile> key = read_row(s, kK);
#pragma unroll
      for (int j = 0; j < Tile::kSteps; ++j) {
#pragma unroll
        for (int i = 0; i < Tile::kRun; ++i) {
#pragma unroll
          for (int c = 0; c < kColumns; ++c) tile.s[j][i][c] = fmaf(d[c], key.x[j][i], tile.s[j][i][c]);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ RegisterRow<Tile> read_row(int t, int first) const {
    RegisterRow<Tile> result;
#pragma unroll
    for (int j = 0; j < Tile::kSteps; ++j) SharedRow{keys + t * kPitch + first}.read(j, Tile::k_of(j), result.x[j]);
    return result;
  }
  // Adds the products of the tile's rows with a row of q or k, over the lane's elements.
  __device__ __forceinline__ void add_products(const Tile& tile, const RegisterRow<Tile>& row,
                                               float (&sums)[kColumns]) const {
#pragma unroll
    for (int j = 0; j < Tile::kSteps; ++j) {
#pragma unroll
      for (int i = 0; i < Tile::kRun; ++i) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sums[c] = fmaf(tile.s[j][i][c], row.x[j][i], sums[c]);
      }
    }
  }
};

}  // namespace thalweg::cu
