#pragma once

// Up to eight tokens together on the tensor cores, by a warp with 16 rows of a state [V,K] in registers. S is the state
// before the first token, D_t the decay from there to token t:
//
//   d_t = beta_t (v_t - D_t S k_t - sum_{s<t} D_t/D_s (k_t . k_s) d_s)
//   o_t = D_t S q_t + sum_{s<=t} D_t/D_s (q_t . k_s) d_s
//   S   = D_last S + sum_s D_last/D_s d_s k_s^T
//
// The state is read once and written once for all tokens, and neither pass depends on the previous token. f32 accuracy
// (split_float.h).

#include "cuda/common/split_float.h"
#include "cuda/gated_delta/state_tile.h"

namespace thalweg::cu {

constexpr int kTogether = 8;

// The tokens in shared memory; q and k from `count` on are zero.
struct TogetherTokens {
  const float* q;         // [kTogether,kPitch]
  const float* k;         // [kTogether,kPitch]
  const float* q_factor;  // [kTogether]: norm and scale of q and k, not yet applied
  const float* k_factor;
  float* v;           // [kTogether,rows]; outputs overwrite values
  const float* g;     // [kTogether]: sums of gates up to the token
  const float* beta;  // [kTogether]
};

// A warp's own shared memory.
struct TogetherScratch {
  static constexpr int kPitch = 20;     // 2 kTogether, and no two rows of eight in the same banks
  float rows[16 * kPitch];              // per row of the tile: S k of the tokens, S q of the tokens; then d
  float with_k[kTogether * kTogether];  // D_t/D_s (k_t . k_s), s < t
  float with_q[kTogether * kTogether];  // D_t/D_s (q_t . k_s), s <= t
};

// A lane's elements of the products with the state before the first token, and of those of the tokens with each other.
// Columns are tokens: the lane's are 2 quad_lane and the next.
struct TogetherProducts {
  float state_k[4] = {};  // rows of the tile
  float state_q[4] = {};
  float low_k[4] = {};  // of the factors' low halves, to be added
  float low_q[4] = {};
  float tokens_k[4] = {};  // rows 0..7: k_t . k_s, 8..15: q_t . k_s
};

// The roles of run_together. kExact: q and k are 16-bit numbers. kPitch is 16 more than a multiple of 32, so that
// fragments are read without bank conflicts.
template <int kPitch, bool kExact, class Tile>
struct Together {
  static_assert(Tile::kVK && Tile::kLanesK == 4 && Tile::kColumns == 2 && Tile::kRun == 4);

  const TogetherTokens& tokens;
  TogetherScratch& scratch;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int group = lane / 4;  // row of the tile, column of b
  const int quad_lane = lane % 4;

  // A tile's lane holds four neighboring k's of a run of 16 where a fragment has k and k + 4 of two runs of eight: a
  // permutation of k that both factors share.
  __device__ __forceinline__ void multiply(const Tile& tile, TogetherProducts& sums) const {
#pragma unroll
    for (int j = 0; j < Tile::kSteps; ++j) {
      const float4 k4 = *reinterpret_cast<const float4*>(tokens.k + group * kPitch + 16 * j + 4 * quad_lane);
      const float4 q4 = *reinterpret_cast<const float4*>(tokens.q + group * kPitch + 16 * j + 4 * quad_lane);
      const SplitFloat k[4] = {split<kExact>(k4.x), split<kExact>(k4.y), split<kExact>(k4.z), split<kExact>(k4.w)};
      const SplitFloat q[4] = {split<kExact>(q4.x), split<kExact>(q4.y), split<kExact>(q4.z), split<kExact>(q4.w)};
#pragma unroll
      for (int half = 0; half < 4; half += 2) {
        const SplitFloat a[4] = {split(tile.s[j][half][0]), split(tile.s[j][half][1]), split(tile.s[j][half + 1][0]),
                                 split(tile.s[j][half + 1][1])};
        multiply_add_f32<true, !kExact>(sums.state_k, sums.low_k, a, k[half], k[half + 1]);
        multiply_add_f32<true, !kExact>(sums.state_q, sums.low_q, a, q[half], q[half + 1]);
        const SplitFloat t[4] = {k[half], q[half], k[half + 1], q[half + 1]};
        multiply_add_f32<!kExact, !kExact>(sums.tokens_k, sums.tokens_k, t, k[half], k[half + 1]);
      }
    }
  }

  // Applies the norm factors, and the decays between two tokens.
  __device__ __forceinline__ void store(const TogetherProducts& sums) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int s = 2 * quad_lane + i;
      const float of_s = tokens.k_factor[s];
      const float ratio = s <= group ? of_s * expf(tokens.g[group] - tokens.g[s]) : 0.0F;
      scratch.with_k[group * kTogether + s] = s < group ? ratio * tokens.k_factor[group] * sums.tokens_k[i] : 0.0F;
      scratch.with_q[group * kTogether + s] = ratio * tokens.q_factor[group] * sums.tokens_k[2 + i];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* const row = scratch.rows + (group + 8 * half) * TogetherScratch::kPitch;
        const int at = 2 * half + i;
        row[s] = (sums.state_k[at] + sums.low_k[at]) * of_s;
        row[kTogether + s] = (sums.state_q[at] + sums.low_q[at]) * tokens.q_factor[s];
      }
    }
  }

  // Solves for the lane's row of d, token after token, and writes the outputs. Replaces the row in the scratch memory
  // by D_last/D_t d_t.
  __device__ __forceinline__ void solve_row(int count, int rows, int warp_v) const {
    float* const row = scratch.rows + lane * TogetherScratch::kPitch;
    float d[kTogether];
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      d[t] = 0.0F;
      if (t >= count) continue;
      const float decay = expf(tokens.g[t]);
      float& value = tokens.v[t * rows + warp_v + lane];
      float memory = decay * row[t];
      float output = decay * row[kTogether + t];
#pragma unroll
      for (int s = 0; s < t; ++s) {
        memory = fmaf(scratch.with_k[t * kTogether + s], d[s], memory);
        output = fmaf(scratch.with_q[t * kTogether + s], d[s], output);
      }
      d[t] = tokens.beta[t] * (value - memory);
      value = fmaf(scratch.with_q[t * kTogether + t], d[t], output);
    }
    const float last = tokens.g[kTogether - 1];
#pragma unroll
    for (int t = 0; t < kTogether; ++t) row[t] = d[t] * expf(last - tokens.g[t]) * tokens.k_factor[t];
  }

  // S = D_last S + sum_s D_last/D_s d_s k_s^T.
  __device__ __forceinline__ void update(Tile& tile) const {
    SplitFloat d[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d[i] = split(scratch.rows[(group + i % 2 * 8) * TogetherScratch::kPitch + quad_lane + i / 2 * 4]);
    }
    const float decay = expf(tokens.g[kTogether - 1]);
    // Columns are k's here: columns 2 quad_lane and the next of the fragment are k = 4 quad_lane + half of the run.
    const float* const keys = tokens.k + quad_lane * kPitch + 4 * (group / 2) + group % 2;
#pragma unroll
    for (int j = 0; j < Tile::kSteps; ++j) {
#pragma unroll
      for (int half = 0; half < 4; half += 2) {
        float sum[4] = {decay * tile.s[j][half][0], decay * tile.s[j][half + 1][0], decay * tile.s[j][half][1],
                        decay * tile.s[j][half + 1][1]};
        const SplitFloat b0 = split<kExact>(keys[16 * j + half]);
        const SplitFloat b1 = split<kExact>(keys[16 * j + half + 4 * kPitch]);
        multiply_add_f32<true, !kExact>(sum, sum, d, b0, b1);
        tile.s[j][half][0] = sum[0];
        tile.s[j][half + 1][0] = sum[1];
        tile.s[j][half][1] = sum[2];
        tile.s[j][half + 1][1] = sum[3];
      }
    }
  }
};

// Applies the tokens to a warp's tile, whose rows of V begin at warp_v of the block's `rows`.
template <int kPitch, bool kExact, class Tile>
__device__ void run_together(Tile& tile, const TogetherTokens& tokens, int count, int rows, int warp_v,
                             TogetherScratch& scratch) {
  const Together<kPitch, kExact, Tile> roles{tokens, scratch};
  TogetherProducts sums;
  roles.multiply(tile, sums);
  roles.store(sums);
  __syncwarp();
  if (roles.lane < 16) roles.solve_row(count, rows, warp_v);
  __syncwarp();
  roles.update(tile);
}

}  // namespace thalweg::cu
