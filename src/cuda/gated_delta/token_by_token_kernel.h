#pragma once

// The gated delta rule token by token.
//
// Roles: a block has rows of one head's state of one sequence, a warp a tile of them in registers, from the first token
//   to the last.
// Shared memory: q, k, v and gates of up to kBlockTokens tokens.
// Pipeline: all warps load a block of tokens, each applies it to its tile, all write the outputs.

#include "cuda/gated_delta/chunk_table.h"
#include "cuda/gated_delta/rule.h"
#include "cuda/gated_delta/token_block.h"

namespace thalweg::cu {

struct TokenByToken {
  Elements q, k, v;  // [B,T,H,.]
  Elements g, beta;  // [B,T,HV]; absent with raw gates
  GateViews gates;
  NormOptions norm;
  Elements initial_state;  // [slots,HV,.,.]
  Elements final_state;
  Elements snapshots;    // [B,T,HV,.,.]
  Elements checkpoints;  // [B,NC,HV,.,.]
  Elements o;            // [B,T,HV,V]
  SequenceTable sequences;
  int hk = 0;
  int hv = 0;
  int ratio = 1;  // value heads of a key head
  int v_size = 0;
  int checkpoint_tokens = 0;
  std::int64_t checkpoint_count = 0;  // NC
  int row_blocks = 1;                 // blocks of a head
  int block_tokens = 1;
  HeadMap head_map = HeadMap::kGrouped;
  float scale = 1.0F;
};

// Loads tokens begin..begin+count-1 of the row into shared memory, normalizes q and k, and computes the gates.
template <int kK>
__device__ void stage_tokens(const TokenByToken& p, std::int64_t row, std::int64_t begin, int count, int head,
                             int first_v, int rows, const TokenMemory& memory) {
  constexpr int kPerLane = (kK + kWarpSize - 1) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int k_head = key_head(p.head_map, head, p.hk, p.hv);
#pragma unroll 1
  for (int t = warp; t < count; t += warps) {
    const std::int64_t q_row = p.q.offset(row, begin + t, k_head);
    const std::int64_t k_row = p.k.offset(row, begin + t, k_head);
    std::uint32_t bits[2][kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int at = i * kWarpSize + lane;
      bits[0][i] = at < kK ? p.q.read(q_row + at) : 0;
      bits[1][i] = at < kK ? p.k.read(k_row + at) : 0;
    }
    float q[kPerLane];
    float k[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      q[i] = p.q.convert(bits[0][i]);
      k[i] = p.k.convert(bits[1][i]);
    }
    normalize_pair(p.norm, k_head, kK, p.scale, q, k);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int at = i * kWarpSize + lane;
      if (at >= kK) continue;
      memory.q[t * kK + at] = q[i];
      memory.k[t * kK + at] = k[i];
    }
  }
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count * rows; i += static_cast<int>(blockDim.x)) {
    memory.v[i] = p.v.load(p.v.offset(row, begin + i / rows, head) + first_v + i % rows);
  }
  // The last threads: the first warps have one token more.
  const int t = static_cast<int>(blockDim.x) - 1 - static_cast<int>(threadIdx.x);
  if (t < count) {
    const Gate gate = p.g.defined() ? Gate{p.g.load(p.g.offset(row, begin + t) + head),
                                           p.beta.load(p.beta.offset(row, begin + t) + head)}
                                    : p.gates.compute(p.gates.read(row, begin + t, head));
    memory.decay[t] = expf(gate.g);
    memory.beta[t] = gate.beta;
  }
}

template <int kK, StateLayout kLayout>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize, 2) token_by_token(const __grid_constant__ TokenByToken p) {
  using Tile = StateTile<kK, kLayout>;
  extern __shared__ float4 shared[];
  const int row_block = static_cast<int>(blockIdx.x % static_cast<unsigned>(p.row_blocks));
  const int head = static_cast<int>(blockIdx.x / static_cast<unsigned>(p.row_blocks) % static_cast<unsigned>(p.hv));
  const std::int64_t n = blockIdx.x / static_cast<unsigned>(p.row_blocks * p.hv);
  const int rows = static_cast<int>(blockDim.x) / kWarpSize * Tile::kWarpV;
  const int first_v = row_block * rows;
  const int warp_v = static_cast<int>(threadIdx.x) / kWarpSize * Tile::kWarpV;  // in the row_block
  const int v0 = first_v + warp_v;
  const int block_rows = min(rows, p.v_size - first_v);
  const bool has_rows = v0 < p.v_size;
  const TokenMemory memory(reinterpret_cast<float*>(shared), p.block_tokens, kK, rows);
  const SequenceSpan sequence = find_sequence(p.sequences, n);
  if (!sequence.valid) return;

  Tile tile;
  if (has_rows && p.initial_state.defined() && sequence.slot >= 0) {
    tile.load(p.initial_state, p.initial_state.offset(sequence.slot, head), p.initial_state.strides[2], v0);
  } else {
    tile.clear();
  }
  std::int64_t checkpoint_index =
      p.checkpoints.defined() ? chunks_before({p.sequences.cu_seqlens, n, p.sequences.tokens, p.checkpoint_tokens}, n)
                              : 0;
  // Stores the state before token t of the sequence, if it is a checkpoint.
  const auto checkpoint = [&](std::int64_t t) {
    if (!p.checkpoints.defined() || t >= sequence.length || t % p.checkpoint_tokens != 0 ||
        checkpoint_index >= p.checkpoint_count)
      return;
    tile.store(p.checkpoints, p.checkpoints.offset(sequence.row, checkpoint_index, head), p.checkpoints.strides[3], v0);
    ++checkpoint_index;
  };
  if (has_rows) checkpoint(0);
  std::int64_t begin = 0;
  do {
    const int count = static_cast<int>(min(static_cast<std::int64_t>(p.block_tokens), sequence.length - begin));
    stage_tokens<kK>(p, sequence.row, sequence.begin + begin, count, head, first_v, block_rows, memory);
    __syncthreads();
    if (has_rows) {
      run_tokens<kK>(tile, memory, count, block_rows, warp_v, [&](int t) {
        checkpoint(begin + t + 1);
        if (!p.snapshots.defined()) return;
        const std::int64_t offset = p.snapshots.offset(sequence.row, sequence.begin + begin + t, head);
        tile.store(p.snapshots, offset, p.snapshots.strides[3], v0);
      });
      if (begin + count == sequence.length && p.final_state.defined() && sequence.slot >= 0) {
        tile.store(p.final_state, p.final_state.offset(sequence.slot, head), p.final_state.strides[2], v0);
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < count * block_rows; i += static_cast<int>(blockDim.x)) {
      const std::int64_t token = sequence.begin + begin + i / block_rows;
      p.o.store(p.o.offset(sequence.row, token, head) + first_v + i % block_rows, memory.v[i]);
    }
    __syncthreads();
    begin += count;
  } while (begin < sequence.length);
}

}  // namespace thalweg::cu
