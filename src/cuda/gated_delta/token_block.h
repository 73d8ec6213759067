#pragma once

// Up to kBlockTokens tokens of one head in shared memory, and the loop of a state tile over them.

#include <cstddef>

#include "cuda/gated_delta/state_tile.h"

namespace thalweg::cu {

constexpr int kBlockTokens = 16;
constexpr int kMaxWarps = 8;

// Shared memory of a block, for block_tokens tokens.
struct TokenMemory {
  float* q;        // [tokens,K]
  float* k;        // [tokens,K]
  float* v;        // [tokens,rows of the block]; an output overwrites its value
  float* decay;    // [tokens]: exp(g)
  float* beta;     // [tokens]
  float* squares;  // [tokens]: for a norm of the outputs

  __device__ TokenMemory(float* memory, int tokens, int k_size, int rows)
      : q(memory),
        k(q + tokens * k_size),
        v(k + tokens * k_size),
        decay(v + tokens * rows),
        beta(decay + tokens),
        squares(beta + tokens) {}
  static std::size_t bytes(int tokens, int k_size, int rows) {
    return sizeof(float) * static_cast<std::size_t>(tokens * (2 * k_size + rows + 3));
  }
  __device__ TokenScalars scalars(int t) const { return {decay[t], beta[t], 1.0F, 1.0F}; }
};

// Applies `count` tokens to a warp's tile, whose rows of V begin at warp_v of the block's `rows`. kPitch is the pitch
// of q and k. Calls after(t) when the tile holds the state after token t.
template <int kPitch, class Tile, class Memory, class After>
__device__ inline void run_tokens(Tile& tile, const Memory& memory, int count, int rows, int warp_v, After after) {
#pragma unroll 1
  for (int t = 0; t < count; ++t) {
    float* const values = memory.v + t * rows + warp_v;
    float v[Tile::kColumns];
    float o[Tile::kColumns];
#pragma unroll
    for (int c = 0; c < Tile::kColumns; ++c) v[c] = values[Tile::v_of(c)];
    tile.step(SharedRow{memory.k + t * kPitch}, SharedRow{memory.q + t * kPitch}, memory.scalars(t), v, o);
    __syncwarp();
#pragma unroll
    for (int c = 0; c < Tile::kColumns; ++c) {
      if (Tile::lane_k() == c) values[Tile::v_of(c)] = o[c];
    }
    after(t);
  }
}

}  // namespace thalweg::cu
