#pragma once

// The gated delta rule token by token. A warp keeps a tile of the state in registers from the first token to the last;
// a block is a slice of one head's rows, whose warps share q and k of up to kBlockTokens tokens in shared memory.

#include "cuda/device/rule.h"
#include "cuda/device/state_tile.h"

namespace thalweg::cu {

constexpr int kBlockTokens = 16;
constexpr int kMaxWarps = 8;

struct TokenByToken {
  Elements q, k, v;  // [B,T,H,.]
  Elements g, beta;  // [B,T,HV]; absent with raw gates
  RawGates gates;
  NormOptions norm;
  Elements initial_state;  // [slots,HV,.,.]
  Elements final_state;
  Elements snapshots;  // [B,T,HV,.,.]
  Elements o;          // [B,T,HV,V]
  SequenceMap sequences;
  int hk = 0;
  int hv = 0;
  int v_size = 0;
  int slices = 1;  // blocks of a head
  int block_tokens = 1;
  HeadMap head_map = HeadMap::kGrouped;
  float scale = 1.0F;
};

// Shared memory of a block, for block_tokens tokens.
struct TokenMemory {
  float* q;        // [tokens,K]
  float* k;        // [tokens,K]
  float* v;        // [tokens,rows of the slice]
  float* decay;    // [tokens]: exp(g)
  float* beta;     // [tokens]
  float* k_dot_q;  // [tokens]

  __device__ TokenMemory(float* memory, int tokens, int k_size, int rows)
      : q(memory),
        k(q + tokens * k_size),
        v(k + tokens * k_size),
        decay(v + tokens * rows),
        beta(decay + tokens),
        k_dot_q(beta + tokens) {}
  static std::size_t bytes(int tokens, int k_size, int rows) {
    return sizeof(float) * static_cast<std::size_t>(tokens * (2 * k_size + rows + 3));
  }
};

// Tokens begin..begin+count-1 of the row into shared memory, normed and gated.
template <int kK>
__device__ void stage_tokens(const TokenByToken& p, std::int64_t row, std::int64_t begin, int count, int head,
                             int first_v, int rows, const TokenMemory& memory) {
  constexpr int kPerLane = (kK + kWarpSize - 1) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int from = key_head(p.head_map, head, p.hk, p.hv);
  with_type(p.q.dtype, [&]<class T>(T) {
    for (int t = warp; t < count; t += warps) {
      const T* q_row = p.q.row<const T>(row, begin + t, from);
      const T* k_row = p.k.row<const T>(row, begin + t, from);
      float q[kPerLane];
      float k[kPerLane];
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int at = i * kWarpSize + lane;
        q[i] = at < kK ? to_f32(q_row[at]) : 0.0F;
        k[i] = at < kK ? to_f32(k_row[at]) : 0.0F;
      }
      const float k_dot_q = normalize_pair(p.norm, from, kK, p.scale, q, k);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int at = i * kWarpSize + lane;
        if (at >= kK) continue;
        memory.q[t * kK + at] = q[i];
        memory.k[t * kK + at] = k[i];
      }
      if (lane == 0) memory.k_dot_q[t] = k_dot_q;
    }
    for (int i = static_cast<int>(threadIdx.x); i < count * rows; i += static_cast<int>(blockDim.x)) {
      memory.v[i] = to_f32(p.v.row<const T>(row, begin + i / rows, head)[first_v + i % rows]);
    }
  });
  // From the last thread backwards: the first ones have a token's q and k to work on.
  const int t = static_cast<int>(blockDim.x) - 1 - static_cast<int>(threadIdx.x);
  if (t < count) {
    const Gate gate = p.g.defined() ? Gate{p.g.load(head, row, begin + t), p.beta.load(head, row, begin + t)}
                                    : p.gates.compute(row, begin + t, head);
    memory.decay[t] = expf(gate.g);
    memory.beta[t] = gate.beta;
  }
}

template <int kK, StateLayout kLayout>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize, 2) token_by_token(const __grid_constant__ TokenByToken p) {
  using Tile = StateTile<kK, kLayout>;
  extern __shared__ float4 shared[];
  const int slice = static_cast<int>(blockIdx.x % static_cast<unsigned>(p.slices));
  const int head = static_cast<int>(blockIdx.x / static_cast<unsigned>(p.slices) % static_cast<unsigned>(p.hv));
  const std::int64_t n = blockIdx.x / static_cast<unsigned>(p.slices * p.hv);
  const int rows = static_cast<int>(blockDim.x) / kWarpSize * Tile::kWarpV;
  const int first_v = slice * rows;
  const int warp_v = static_cast<int>(threadIdx.x) / kWarpSize * Tile::kWarpV;  // in the slice
  const int v0 = first_v + warp_v;
  const int slice_rows = min(rows, p.v_size - first_v);
  const bool works = v0 < p.v_size;
  const TokenMemory memory(reinterpret_cast<float*>(shared), p.block_tokens, kK, rows);
  const Sequence sequence = find_sequence(p.sequences, n);
  if (!sequence.valid) return;

  Tile tile;
  if (works && p.initial_state.defined() && sequence.slot >= 0) {
    tile.load(p.initial_state, p.initial_state.offset(sequence.slot, head), p.initial_state.strides[2], v0);
  } else {
    tile.clear();
  }
  for (std::int64_t begin = 0; begin < sequence.length; begin += p.block_tokens) {
    const int count = static_cast<int>(min(static_cast<std::int64_t>(p.block_tokens), sequence.length - begin));
    if (begin > 0) __syncthreads();
    stage_tokens<kK>(p, sequence.row, sequence.begin + begin, count, head, first_v, slice_rows, memory);
    __syncthreads();
    if (!works) continue;
    for (int t = 0; t < count; ++t) {
      float v[Tile::kColumns];
      float o[Tile::kColumns];
#pragma unroll
      for (int c = 0; c < Tile::kColumns; ++c) v[c] = memory.v[t * slice_rows + warp_v + Tile::v_of(c)];
      tile.step(memory.k + t * kK, memory.q + t * kK, memory.k_dot_q[t], memory.decay[t], memory.beta[t], v, o);
      const std::int64_t token = sequence.begin + begin + t;
      if (Tile::writes()) {
        p.o.store(Tile::own(o), v0 + Tile::v_of(Tile::lane_k()), sequence.row, token, head);
      }
      if (p.snapshots.defined()) {
        const std::int64_t offset = p.snapshots.offset(sequence.row, token, head);
        tile.store(p.snapshots, offset, p.snapshots.strides[3], v0);
      }
    }
  }
  if (works && p.final_state.defined() && sequence.slot >= 0) {
    tile.store(p.final_state, p.final_state.offset(sequence.slot, head), p.final_state.strides[2], v0);
  }
}

}  // namespace thalweg::cu
