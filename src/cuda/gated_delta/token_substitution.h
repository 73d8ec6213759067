#pragma once

// Up to eight tokens at once in f32, by a warp with some rows of a state [V,K] in registers. S is the state before the
// first token, D_t the product of the decays up to token t:
//
//   d_t = beta_t (v_t - D_t S k_t - sum_{s<t} D_t/D_s (k_t . k_s) d_s)
//   o_t = D_t S q_t + sum_{s<=t} D_t/D_s (q_t . k_s) d_s
//   S   = D_c S + sum_{s<=c} D_c/D_s d_s k_s^T, where c is the last token that changes the state
//
// The products with S depend on no other token, and S changes once: what goes from token to token is the substitution,
// a few operations of a lane for a row. Decays between two tokens are products, not quotients: a decay may be 0.

#include "cuda/gated_delta/state_tile.h"
#include "cuda/gated_delta/token_products.h"

namespace thalweg::cu {

// The products of the tokens of a key head with each other, [2,kTogether,kTogether] in shared memory: k_t . k_s, then
// q_t . k_s, for s <= t and without norm factors.
constexpr int kTokenProducts = 2 * kTogether * kTogether;

// Computes them for tokens first_output and on (q) and all (k), by all warps of a block. Four lanes share a product.
template <int kK, int kPitch>
__device__ inline void multiply_tokens(const float* q, const float* k, int count, int first_output, int warp, int warps,
                                       float* products) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll 1
  for (int i = warp; i < 2 * kTogether; i += warps) {
    const int t = i % kTogether;
    const bool is_q = i >= kTogether;
    if (t >= count || (is_q && t < first_output)) continue;
    const float* const row = (is_q ? q : k) + t * kPitch + lane % 4 * 4;
    const float* const key = k + min(lane / 4, t) * kPitch + lane % 4 * 4;
    float sum[4] = {};
#pragma unroll
    for (int j = 0; j < kK; j += 16) {
      const float4 a = *reinterpret_cast<const float4*>(row + j);
      const float4 b = *reinterpret_cast<const float4*>(key + j);
      sum[0] = fmaf(a.x, b.x, sum[0]), sum[1] = fmaf(a.y, b.y, sum[1]);
      sum[2] = fmaf(a.z, b.z, sum[2]), sum[3] = fmaf(a.w, b.w, sum[3]);
    }
    const float product = warp_sum<4>(sum[0] + sum[1] + (sum[2] + sum[3]));
    if (lane % 4 == 0) products[i * kTogether + lane / 4] = product;
  }
}

// The tokens of a value head in shared memory.
struct SubstitutedTokens {
  const float* q;         // [tokens,kPitch]
  const float* k;         // [tokens,kPitch]
  const float* q_factor;  // [tokens]: norm and scale of q and k, not yet applied
  const float* k_factor;
  float* v;  // [tokens,v_pitch]; outputs overwrite values
  int v_pitch;
  const float* decay;     // [tokens]: exp(g)
  const float* beta;      // [tokens]
  const float* products;  // of multiply_tokens()
  float* with_q;          // [tokens,rows]: scratch memory; S q_t, then d_t
  int rows;
  int count;
  int first_output;  // those before it have none
  int committed;     // tokens that change the state
};

// The tile's rows of V are those of v and with_q from warp_v on.
template <int kPitch, class Tile>
struct Substitution {
  static constexpr int kColumns = Tile::kColumns;
  static_assert(Tile::kVK && Tile::kRun == 4 && Tile::kLanesK >= 2 * kColumns);

  const SubstitutedTokens& tokens;
  const int warp_v;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;

  // Subtracts D_t S k_t from v_t and stores D_t S q_t.
  __device__ __forceinline__ void multiply(const Tile& tile) const {
    const int lane_k = Tile::lane_k();
    const bool for_q = lane_k % 2 == 1;
    const int row = warp_v + Tile::v_of(lane_k / 2 % kColumns);
    float decay = 1.0F;
#pragma unroll 1
    for (int t = 0; t < tokens.count; ++t) {
      decay *= tokens.decay[t];
      const bool has_output = t >= tokens.first_output;
      float sums[kColumns][2] = {};  // with k, with q
      add_products(tile, read_row(tokens.k + t * kPitch), sums, 0);
      if (has_output) add_products(tile, read_row(tokens.q + t * kPitch), sums, 1);
      const float sum = decay * sum_over_lanes(sums);
      if (lane_k >= 2 * kColumns) continue;
      if (!for_q) tokens.v[t * tokens.v_pitch + row] -= tokens.k_factor[t] * sum;
      if (for_q && has_output) tokens.with_q[t * tokens.rows + row] = tokens.q_factor[t] * sum;
    }
  }

  // Solves for the lane's row, writes its outputs, and leaves D_c/D_t d_t, times the factor of k, in with_q. The first
  // kWarpV lanes call it.
  __device__ __forceinline__ void solve_row() const {
    const int row = warp_v + lane;
    float d[kTogether];  // D_t/D_s d_s
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      d[t] = 0.0F;
      if (t >= tokens.count) continue;
      const float* const k_products = tokens.products + t * kTogether;
      const float* const q_products = k_products + kTogether * kTogether;
      const float decay = tokens.decay[t];
      const float k_factor = tokens.k_factor[t];
      float& value = tokens.v[t * tokens.v_pitch + row];
      float memory = 0.0F;
#pragma unroll
      for (int s = 0; s < t; ++s) {
        d[s] *= decay;
        memory = fmaf(k_products[s], d[s], memory);
      }
      d[t] = k_factor * tokens.beta[t] * (value - k_factor * memory);
      if (t >= tokens.first_output) {
        float output = 0.0F;
#pragma unroll
        for (int s = 0; s <= t; ++s) output = fmaf(q_products[s], d[s], output);
        value = fmaf(tokens.q_factor[t], output, tokens.with_q[t * tokens.rows + row]);
      }
      if (t + 1 == tokens.committed) {  // the outputs of these tokens are written
#pragma unroll
        for (int s = 0; s <= t; ++s) tokens.with_q[s * tokens.rows + row] = d[s];
      }
    }
  }

  // S = D_c S + sum_{s<=c} D_c/D_s d_s k_s^T.
  __device__ __forceinline__ void update(Tile& tile) const {
    float decay = 1.0F;
#pragma unroll 1
    for (int t = 0; t < tokens.committed; ++t) decay *= tokens.decay[t];
    tile.for_each([&](float& x) { x *= decay; });
#pragma unroll 1
    for (int s = 0; s < tokens.committed; ++s) {
      float d[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) d[c] = tokens.with_q[s * tokens.rows + warp_v + Tile::v_of(c)];
      const RegisterRow<Tile> key = read_row(tokens.k + s * kPitch);
#pragma unroll
      for (int j = 0; j < Tile::kSteps; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int c = 0; c < kColumns; ++c) tile.s[j][i][c] = fmaf(d[c], key.x[j][i], tile.s[j][i][c]);
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ RegisterRow<Tile> read_row(const float* row) {
    RegisterRow<Tile> result;
#pragma unroll
    for (int j = 0; j < Tile::kSteps; ++j) SharedRow{row}.read(j, Tile::k_of(j), result.x[j]);
    return result;
  }

  // Adds the products of the tile's rows with a row of q or k, over the lane's elements.
  __device__ __forceinline__ void add_products(const Tile& tile, const RegisterRow<Tile>& row,
                                               float (&sums)[kColumns][2], int which) const {
#pragma unroll
    for (int j = 0; j < Tile::kSteps; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sums[c][which] = fmaf(tile.s[j][i][c], row.x[j][i], sums[c][which]);
      }
    }
  }
  // The sum over the lanes of a row: lane i of them returns column i / 2 % kColumns, with k if i is even, else with q.
  __device__ __forceinline__ float sum_over_lanes(const float (&sums)[kColumns][2]) const {
    float columns[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) columns[c] = sum_two_of_pairs(sums[c]);
#pragma unroll
    for (int distance = 2, left = kColumns; left > 1; distance *= 2, left /= 2) {
      const bool odd = (lane & distance) != 0;
#pragma unroll
      for (int c = 0; c < left / 2; ++c) {
        const float mine = odd ? columns[2 * c + 1] : columns[2 * c];
        columns[c] = mine + __shfl_xor_sync(0xFFFFFFFFU, odd ? columns[2 * c] : columns[2 * c + 1], distance);
      }
    }
    float sum = columns[0];
#pragma unroll
    for (int distance = 2 * kColumns; distance < Tile::kLanesK; distance *= 2) {
      sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
    }
    return sum;
  }
};

// Applies the tokens to a warp's tile.
template <int kPitch, class Tile>
__device__ void run_substitution(Tile& tile, const SubstitutedTokens& tokens, int warp_v) {
  const Substitution<kPitch, Tile> roles{tokens, warp_v};
  __syncwarp();  // with_q may be that of the head before
  roles.multiply(tile);
  __syncwarp();
  if (roles.lane < Tile::kWarpV) roles.solve_row();
  __syncwarp();
  roles.update(tile);
}

}  // namespace thalweg::cu
