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

// The tokens of a value head in shared memory.
struct SubstitutedTokens {
  const float* q;         // [count,kPitch]
  const float* k;         // [count,kPitch]
  const float* q_factor;  // [count]: norm and scale of q and k, not yet applied
  const float* k_factor;
  const float* decay;  // [kTogether]: exp(g)
  const float* beta;   // [count]
  int count;
  int first_output;  // those before it have none
  int committed;     // tokens that change the state
};

// What the substitution multiplies by, the same for all rows of a value head, in shared memory. d is counted with the
// factor of its k.
struct TokenProducts {
  // [t][s] for s < t: D_t/D_s k_t . k_s times beta_t and both factors of k_t; [t][t]: beta_t and k_t's factor.
  float with_k[kTogether][kTogether];
  float with_q[kTogether][kTogether];  // [t][s] for s <= t: D_t/D_s q_t . k_s times q_t's factor
  float scale[kTogether][2];           // of S k_t and of S q_t: D_t and their factors
  float to_end[kTogether];             // D_c/D_t
  float decay;                         // D_c
  float unused[3];
};
static_assert(sizeof(TokenProducts) % sizeof(float4) == 0);

// Computes them, by all warps of a block. Four lanes share a product.
template <int kK, int kPitch>
__device__ inline void multiply_tokens(const SubstitutedTokens& tokens, int warp, int warps, TokenProducts& products) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll 1
  for (int i = warp; i < 2 * kTogether; i += warps) {
    const int t = i % kTogether;
    const bool is_q = i >= kTogether;
    if (t >= tokens.count || (is_q && t < tokens.first_output)) continue;
    const int s = lane / 4;
    const float* const row = (is_q ? tokens.q : tokens.k) + t * kPitch + lane % 4 * 4;
    const float* const key = tokens.k + min(s, t) * kPitch + lane % 4 * 4;
    float sum[4] = {};
#pragma unroll
    for (int j = 0; j < kK; j += 16) {
      const float4 a = *reinterpret_cast<const float4*>(row + j);
      const float4 b = *reinterpret_cast<const float4*>(key + j);
      sum[0] = fmaf(a.x, b.x, sum[0]), sum[1] = fmaf(a.y, b.y, sum[1]);
      sum[2] = fmaf(a.z, b.z, sum[2]), sum[3] = fmaf(a.w, b.w, sum[3]);
    }
    const float product = warp_sum<4>(sum[0] + sum[1] + (sum[2] + sum[3]));
    float decay = 1.0F;  // D_t/D_s
#pragma unroll
    for (int r = 1; r < kTogether; ++r) decay *= r > s && r <= t ? tokens.decay[r] : 1.0F;
    const float from_start = decay * tokens.decay[0];  // D_t, for s = 0
    if (lane % 4 != 0) continue;
    if (is_q) {
      products.with_q[t][s] = tokens.q_factor[t] * decay * product;
      if (s == 0) products.scale[t][1] = tokens.q_factor[t] * from_start;
    } else {
      const float factor = tokens.k_factor[t] * tokens.beta[t];
      products.with_k[t][s] = s == t ? factor : factor * tokens.k_factor[t] * decay * product;
      if (s == 0) products.scale[t][0] = tokens.k_factor[t] * from_start;
      if (t + 1 == tokens.committed) {
        products.to_end[s] = decay;
        if (s == 0) products.decay = from_start;
      }
    }
  }
}

// For a warp, whose tile's rows of V are those of v from warp_v on.
template <int kPitch, class Tile>
struct Substitution {
  static constexpr int kColumns = Tile::kColumns;
  static_assert(Tile::kVK && Tile::kLanesK >= 2 * kColumns);

  const SubstitutedTokens& tokens;
  const TokenProducts& products;
  float* const v;  // [count,v_pitch]; outputs overwrite values
  const int v_pitch;
  float2* const with_state;  // [count,rows], scratch memory: S k_t and S q_t, scaled; then D_c/D_t d_t
  const int rows;
  const int warp_v;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;

  __device__ __forceinline__ void multiply(const Tile& tile) const {
    const int lane_k = Tile::lane_k();
    // Where the lane's sums go: those with k alone, and those with k or q.
    float* const to_k = &with_state[warp_v + Tile::v_of(lane_k % kColumns)].x;
    float* const to_both = &with_state[warp_v + Tile::v_of(lane_k / 2 % kColumns)].x + lane_k % 2;
#pragma unroll 1
    for (int t = 0; t < tokens.first_output; ++t) {
      float sums[kColumns] = {};
      add_products(tile, read_row(tokens.k + t * kPitch), sums);
      to_k[2 * t * rows] = products.scale[t][0] * Tile::template sum_column<1>(sums);
    }
#pragma unroll 1
    for (int t = tokens.first_output; t < tokens.count; ++t) {
      float with_k[kColumns] = {};
      float with_q[kColumns] = {};
      add_products(tile, read_row(tokens.k + t * kPitch), with_k);
      add_products(tile, read_row(tokens.q + t * kPitch), with_q);
      float sums[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sums[c] = sum_two_of_pairs({with_k[c], with_q[c]});
      to_both[2 * t * rows] = products.scale[t][lane_k % 2] * Tile::template sum_column<2>(sums);
    }
  }

  // Solves for the lane's row and writes its outputs. The first kWarpV lanes call it.
  __device__ __forceinline__ void solve_row() const {
    const int row = warp_v + lane;
    float d[kTogether];
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      d[t] = 0.0F;
      if (t >= tokens.count) continue;
      float& value = v[t * v_pitch + row];
      const float2 with = with_state[t * rows + row];
      float factors[kTogether];
      read_eight(products.with_k[t], factors);
      float sum = factors[t] * (value - with.x);
#pragma unroll
      for (int s = 0; s < t; ++s) sum = fmaf(-factors[s], d[s], sum);
      d[t] = sum;
      if (t >= tokens.first_output) {
        read_eight(products.with_q[t], factors);
        float output = with.y;
#pragma unroll
        for (int s = 0; s <= t; ++s) output = fmaf(factors[s], d[s], output);
        value = output;
      }
    }
    float to_end[kTogether];
    read_eight(products.to_end, to_end);
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      if (t < tokens.committed) with_state[t * rows + row].x = to_end[t] * d[t];
    }
  }

  __device__ __forceinline__ void update(Tile& tile) const {
    if (tokens.committed == 0) return;
    const float decay = products.decay;
    tile.for_each([&](float& x) { x *= decay; });
#pragma unroll 1
    for (int s = 0; s < tokens.committed; ++s) {
      float d[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) d[c] = with_state[s * rows + warp_v + Tile::v_of(c)].x;
      const RegisterRow<Tile> key = read_row(tokens.k + s * kPitch);
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
  static __device__ __forceinline__ RegisterRow<Tile> read_row(const float* row) {
    RegisterRow<Tile> result;
#pragma unroll
    for (int j = 0; j < Tile::kSteps; ++j) SharedRow{row}.read(j, Tile::k_of(j), result.x[j]);
    return result;
  }
  static __device__ __forceinline__ void read_eight(const float* from, float (&x)[kTogether]) {
    SharedRow{from}.read(0, 0, x);
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

// Applies the tokens to a warp's tile.
template <int kPitch, class Tile>
__device__ void run_substitution(Tile& tile, const Substitution<kPitch, Tile>& roles) {
  roles.multiply(tile);
  __syncwarp();
  if (roles.lane < Tile::kWarpV) roles.solve_row();
  __syncwarp();
  roles.update(tile);
}

}  // namespace thalweg::cu
