#pragma once

// The recurrence for a few tokens of each sequence, with everything known beforehand that is common in decoding: K, the
// state's type, its layout [V,K], rows that can be read four elements at a time. What a token needs is asked for before
// the state is, and prepared while the state is on its way. One token, or tokens with a snapshot after each, go one by
// one; more of them together, on the tensor cores.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/rule.h"
#include "cuda/gated_delta/token_block.h"
#include "cuda/gated_delta/token_products.h"

namespace thalweg::cu {

// In the order in which kernels need it.
struct Decode {
  Compact<3> initial_state;  // [B or slots,HV,V,K]
  Compact<3> q, k, v;        // [B,T,H,.]
  CompactGateViews gates;    // without a_log: g and beta in the places of a and b, [B,T,HV]
  Compact<3> final_state;
  Compact<3> o;  // [B,T,HV,V]
  SlotTable slots;
  float scale = 1.0F;
  int tokens = 1;
  int hk = 0;
  int ratio = 1;  // value heads of a key head
  int v_size = 0;
  int tile_warps = 1;  // warps of a block that hold pieces of the state
  HeadMap head_map = HeadMap::kGrouped;
  CompactNormOptions norm;
  Compact<4> snapshots;  // [B,T,HV,V,K]

  __device__ int key_head(int head) const { return head_map == HeadMap::kTiled ? head % hk : head / ratio; }
  __device__ GateBits read_gate(int row, int t, int head) const {
    if (gates.a_log.defined()) return gates.read(row, t, head);
    return {gates.a.read(gates.a.offset(row, t) + head), gates.b.read(gates.b.offset(row, t) + head), 0, 0};
  }
  __device__ Gate compute_gate(const GateBits& raw) const {
    return gates.a_log.defined() ? gates.compute(raw) : Gate{gates.a.convert(raw.a), gates.b.convert(raw.b)};
  }
};

// How the tokens go: one by one, or together, either for any q and k or for those of 16 bits without weights of a norm.
enum class Tokens { kOneByOne, kAll, kAllExact };

// A block's shared memory; all ways through the tokens.
template <int kK>
struct DecodeMemory {
  static constexpr int kPitch = kK + 16;

  float* q;                  // [tokens,kPitch]; what it is still to be multiplied with is in q_factor
  float* k;                  // [tokens,kPitch]
  float* v;                  // [tokens,rows of the slice]; each value makes way for its output
  float* decay;              // [kTogether]: exp(g), or the sum of g up to the token if they go together
  float* beta;               // [kTogether]
  float* q_factor;           // [kTogether]
  float* k_factor;           // [kTogether]
  TogetherScratch* scratch;  // [warps]

  __device__ DecodeMemory(float4* memory, int tokens, int rows)
      : q(reinterpret_cast<float*>(memory)),
        k(q + tokens * kPitch),
        v(k + tokens * kPitch),
        decay(v + tokens * rows),
        beta(decay + kTogether),
        q_factor(beta + kTogether),
        k_factor(q_factor + kTogether),
        scratch(reinterpret_cast<TogetherScratch*>(k_factor + kTogether)) {}
  __device__ TokenScalars scalars(int t) const { return {decay[t], beta[t], q_factor[t], k_factor[t]}; }
};

inline std::size_t decode_memory_bytes(std::int64_t k, bool together, std::int64_t tokens, std::int64_t rows,
                                       std::int64_t tile_warps) {
  const std::int64_t slots = together ? kTogether : tokens;
  return sizeof(float) * static_cast<std::size_t>(slots * (2 * (k + 16) + rows) + 4 * kTogether) +
         (together ? sizeof(TogetherScratch) * static_cast<std::size_t>(tile_warps) : 0);
}

// Four elements in a row, on their way: read now, converted later.
struct RawFour {
  uint4 bits;

  template <class View>
  __device__ static RawFour read(const View& from, std::int64_t offset) {
    if (from.dtype == DType::kF32) {
      return {*reinterpret_cast<const uint4*>(static_cast<const float*>(from.data) + offset)};
    }
    const uint2 half = *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(from.data) + offset);
    return {uint4{half.x, half.y, 0, 0}};
  }
  template <class View>
  __device__ void convert(const View& from, float (&x)[4]) const {
    if (from.dtype == DType::kF32) {
      x[0] = __uint_as_float(bits.x), x[1] = __uint_as_float(bits.y);
      x[2] = __uint_as_float(bits.z), x[3] = __uint_as_float(bits.w);
    } else {
      x[0] = from.convert(bits.x & 0xFFFFU), x[1] = from.convert(bits.x >> 16);
      x[2] = from.convert(bits.y & 0xFFFFU), x[3] = from.convert(bits.y >> 16);
    }
  }
};

// Which elements of [tokens,16 rows] a lane reads and writes: a row of tokens token(0), token(1), ..
struct WarpRows {
  __device__ static int row() { return static_cast<int>(threadIdx.x) % 16; }
  __device__ static int token(int i) { return 2 * i + static_cast<int>(threadIdx.x) % kWarpSize / 16; }
};

// Gates of kTogether tokens by as many neighbouring lanes, a token each (g = 0 and beta = 0 beyond the last): with the
// sums of g up to the token, if the tokens go together. All lanes of the warp take part.
__device__ inline Gate accumulated(Gate gate, bool together, int t) {
  if (!together) return gate;
#pragma unroll
  for (int distance = 1; distance < kTogether; distance *= 2) {
    const float before = __shfl_up_sync(0xFFFFFFFFU, gate.g, static_cast<unsigned>(distance), kTogether);
    if (t >= distance) gate.g += before;
  }
  return gate;
}
// In a token's place of `decay`; that of beta is kTogether further on.
__device__ inline void store_gate(const Gate& gate, bool together, float* decay) {
  decay[0] = together ? gate.g : expf(gate.g);
  decay[kTogether] = gate.beta;
}

// All tokens through a warp's tile.
template <int kK, Tokens kTokens, class Tile, class After>
__device__ inline void decode_tokens(Tile& tile, const DecodeMemory<kK>& memory, int count, int rows, int warp_v,
                                     After after) {
  constexpr int kPitch = DecodeMemory<kK>::kPitch;
  if constexpr (kTokens == Tokens::kOneByOne) {
    run_tokens<kPitch>(tile, memory, count, rows, warp_v, after);
  } else {
    const TogetherTokens tokens{memory.q, memory.k,     memory.q_factor, memory.k_factor,
                                memory.v, memory.decay, memory.beta};
    constexpr bool kExact = kTokens == Tokens::kAllExact;
    run_together<kPitch, kExact>(tile, tokens, count, rows, warp_v, memory.scratch[threadIdx.x / kWarpSize]);
  }
}

// At least half as many warps as tokens; without cu_seqlens.
template <int kK, class State, Tokens kTokens>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize, 2) decode(const __grid_constant__ Decode p) {
  using Tile = StateTile<kK, StateLayout::kVK>;
  constexpr bool kAllTogether = kTokens != Tokens::kOneByOne;
  constexpr int kRounds = kAllTogether ? 2 : 1;  // of tokens for a warp, before the state is asked for
  constexpr int kPasses = kAllTogether ? 4 : 1;  // over the rows of v: 16 of two tokens at a time
  extern __shared__ float4 shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int lane = thread % kWarpSize;
  const int slice = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.z);
  const int count = p.tokens;
  const int slots = kAllTogether ? kTogether : count;
  const int from = p.key_head(head);
  const int slice_rows = p.tile_warps * Tile::kWarpV;
  const int warp_v = warp * Tile::kWarpV;
  const int v0 = slice * slice_rows + warp_v;
  const bool works = warp < p.tile_warps;
  const DecodeMemory<kK> memory(shared, slots, slice_rows);
  pdl_wait();

  RawFour raw_q[kRounds];
  RawFour raw_k[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int t = min(warp + r * warps, count - 1);
    const int at = min(4 * lane, kK - 4);
    raw_q[r] = RawFour::read(p.q, p.q.offset(row, t, from) + at);
    raw_k[r] = RawFour::read(p.k, p.k.offset(row, t, from) + at);
  }
  const WarpRows warp_rows;
  std::uint32_t raw_v[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int t = warp_rows.token(i);
    raw_v[i] = works && t < count ? p.v.read(p.v.offset(row, t, head) + v0 + warp_rows.row()) : 0;
  }
  GateBits gate_bits{};
  const int gate_token = thread - (warps - 1) * kWarpSize;  // the last warp's first lanes
  if (gate_token >= 0 && gate_token < count) gate_bits = p.read_gate(row, gate_token, head);
  int slot;
  if (!find_slot(p.slots, row, slot)) return;
  Tile tile;
  if (works && slot >= 0 && p.initial_state.defined()) {
    const auto* state = static_cast<const State*>(p.initial_state.data);
    tile.load_fours(state + p.initial_state.offset(slot, head), p.initial_state.strides[2], v0);
  } else {
    tile.clear();
  }

  const auto stage = [&](int t, const RawFour& q_bits, const RawFour& k_bits) {
    const bool within = 4 * lane < kK;
    float q[4];
    float k[4];
    q_bits.convert(p.q, q);
    k_bits.convert(p.k, k);
    float squares[2] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (t >= count || !within) q[i] = k[i] = 0.0F;
      squares[0] = fmaf(q[i], q[i], squares[0]);
      squares[1] = fmaf(k[i], k[i], squares[1]);
    }
    if (p.norm.norm != QkNorm::kNone) squares[0] = warp_sum(squares[0]), squares[1] = warp_sum(squares[1]);
    // Beyond the last token too the products are 0, even if the norm's eps is 0.
    if (lane == 0) memory.q_factor[t] = t < count ? p.scale * p.norm.factor(squares[0], kK) : 0.0F;
    if (lane == 0) memory.k_factor[t] = t < count ? p.norm.factor(squares[1], kK) : 0.0F;
    if (kTokens != Tokens::kAllExact && p.norm.norm == QkNorm::kRms && within) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q[i] *= p.norm.q_weight.load(p.norm.q_weight.offset(from) + 4 * lane + i);
        k[i] *= p.norm.k_weight.load(p.norm.k_weight.offset(from) + 4 * lane + i);
      }
    }
    if (within) {
      *reinterpret_cast<float4*>(memory.q + t * memory.kPitch + 4 * lane) = {q[0], q[1], q[2], q[3]};
      *reinterpret_cast<float4*>(memory.k + t * memory.kPitch + 4 * lane) = {k[0], k[1], k[2], k[3]};
    }
  };
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (warp + r * warps < slots) stage(warp + r * warps, raw_q[r], raw_k[r]);
  }
#pragma unroll 1
  for (int t = warp + kRounds * warps; t < slots; t += warps) {  // one by one, with fewer warps than tokens
    const int at = min(4 * lane, kK - 4);
    const int token = min(t, count - 1);
    stage(t, RawFour::read(p.q, p.q.offset(row, token, from) + at),
          RawFour::read(p.k, p.k.offset(row, token, from) + at));
  }
  float* const values = memory.v + warp_v + warp_rows.row();  // of the warp's rows: its outputs later on
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    if (works && warp_rows.token(i) < count) values[warp_rows.token(i) * slice_rows] = p.v.convert(raw_v[i]);
  }
#pragma unroll 1
  for (int t = warp_rows.token(kPasses); works && t < count; t += 2) {  // one by one
    values[t * slice_rows] = p.v.load(p.v.offset(row, t, head) + v0 + warp_rows.row());
  }
  if (gate_token >= 0) {
    Gate gate = gate_token < count ? p.compute_gate(gate_bits) : Gate{};
    gate = accumulated(gate, kAllTogether, gate_token % kTogether);
    if (gate_token < kTogether) store_gate(gate, kAllTogether, memory.decay + gate_token);
  }
  __syncthreads();
  if (!works) return;
  decode_tokens<kK, kTokens>(tile, memory, count, slice_rows, warp_v, [&](int t) {
    if (!p.snapshots.defined()) return;
    auto* state = static_cast<State*>(p.snapshots.data);
    tile.store_fours(state + p.snapshots.offset(row, t, head), p.snapshots.strides[3], v0);
  });
  if (slot >= 0 && p.final_state.defined()) {
    auto* state = static_cast<State*>(p.final_state.data);
    tile.store_fours(state + p.final_state.offset(slot, head), p.final_state.strides[2], v0);
  }
  __syncwarp();
#pragma unroll 1
  for (int t = warp_rows.token(0); t < count; t += 2) {
    p.o.store(p.o.offset(row, t, head) + v0 + warp_rows.row(), values[t * slice_rows]);
  }
  pdl_trigger();
}

// A lane's share of one row of q or k.
template <class Tile>
struct RegisterRow {
  float x[Tile::kSteps][4];

  __device__ void read(int step, int, float (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = x[step][i];
  }
};

// One token, without snapshots, by warps that need nothing of each other: the shortest way for few sequences, at the
// price of reading q and k for every four rows of the state.
template <int kK, class State>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize) decode_one(const __grid_constant__ Decode p) {
  using Tile = StateTile<kK, StateLayout::kVK, 1>;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int head = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.z);
  const int from = p.key_head(head);
  const int v0 = (static_cast<int>(blockIdx.x) * p.tile_warps + warp) * Tile::kWarpV;
  pdl_wait();
  int slot;
  if (!find_slot(p.slots, row, slot)) return;

  RawFour raw_q[Tile::kSteps];
  RawFour raw_k[Tile::kSteps];
#pragma unroll
  for (int j = 0; j < Tile::kSteps; ++j) {
    raw_q[j] = RawFour::read(p.q, p.q.offset(row, 0, from) + Tile::k_of(j));
    raw_k[j] = RawFour::read(p.k, p.k.offset(row, 0, from) + Tile::k_of(j));
  }
  const std::uint32_t raw_v = p.v.read(p.v.offset(row, 0, head) + v0 + Tile::v_of(0));
  const GateBits gate_bits = p.read_gate(row, 0, head);
  Tile tile;
  if (slot >= 0 && p.initial_state.defined()) {
    const auto* state = static_cast<const State*>(p.initial_state.data);
    tile.load_fours(state + p.initial_state.offset(slot, head), p.initial_state.strides[2], v0);
  } else {
    tile.clear();
  }

  RegisterRow<Tile> q;
  RegisterRow<Tile> k;
  float squares[2] = {};
#pragma unroll
  for (int j = 0; j < Tile::kSteps; ++j) {
    raw_q[j].convert(p.q, q.x[j]);
    raw_k[j].convert(p.k, k.x[j]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      squares[0] = fmaf(q.x[j][i], q.x[j][i], squares[0]);
      squares[1] = fmaf(k.x[j][i], k.x[j][i], squares[1]);
    }
  }
  const Gate gate = p.compute_gate(gate_bits);
  TokenScalars scalars{expf(gate.g), gate.beta, p.scale, 1.0F};
  if (p.norm.norm != QkNorm::kNone) {
    scalars.q_factor *= p.norm.factor(warp_sum<Tile::kLanesK>(squares[0]), kK);
    scalars.k_factor = p.norm.factor(warp_sum<Tile::kLanesK>(squares[1]), kK);
  }
  if (p.norm.norm == QkNorm::kRms) {
#pragma unroll
    for (int j = 0; j < Tile::kSteps; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q.x[j][i] *= p.norm.q_weight.load(p.norm.q_weight.offset(from) + Tile::k_of(j) + i);
        k.x[j][i] *= p.norm.k_weight.load(p.norm.k_weight.offset(from) + Tile::k_of(j) + i);
      }
    }
  }
  const float v[1] = {p.v.convert(raw_v)};
  float o[1];
  tile.step(k, q, scalars, v, o);
  if (slot >= 0 && p.final_state.defined()) {
    auto* state = static_cast<State*>(p.final_state.data);
    tile.store_fours(state + p.final_state.offset(slot, head), p.final_state.strides[2], v0);
  }
  if (Tile::lane_k() == 0) p.o.store(p.o.offset(row, 0, head) + v0 + Tile::v_of(0), o[0]);
  pdl_trigger();
}

}  // namespace thalweg::cu
