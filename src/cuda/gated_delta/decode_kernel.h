#pragma once

// The recurrence for 1 to 8 tokens of each sequence: K, the type of the state and its layout [V,K] are known at compile
// time, and four elements of a row can be accessed at once.
//
// Roles: the first tile_warps warps hold 16 rows of a head's state each; all warps load q and k, a token each; the
//   lanes of the last warp compute the gates, a token each. In decode_one every warp does all of it for its four rows.
// Shared memory: q, k and v of the tokens, their gates and norm factors (DecodeMemory). decode_one has none.
// Pipeline: the loads of the tokens precede those of the state; q, k and the gates are prepared while the state is in
//   flight. Then the tokens go one by one, or all together on the tensor cores (token_products.h).

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/raw_four.h"
#include "cuda/gated_delta/rule.h"
#include "cuda/gated_delta/token_block.h"
#include "cuda/gated_delta/token_products.h"

namespace thalweg::cu {

// In the order in which kernels read it.
struct Decode {
  Compact<3> initial_state;  // [B or slots,HV,V,K]
  Compact<3> q, k, v;        // [B,T,H,.]
  CompactGateViews gates;    // without a_log: a and b are g and beta, [B,T,HV]
  Compact<3> final_state;
  Compact<3> o;  // [B,T,HV,V]
  SlotTable slots;
  float scale = 1.0F;
  int tokens = 1;
  int hk = 0;
  int ratio = 1;  // value heads of a key head
  int v_size = 0;
  int tile_warps = 1;  // warps of a block that hold rows of the state
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

// How a kernel processes the tokens: one by one, or together on the tensor cores (token_products.h). kAllExact needs
// 16-bit q and k without norm weights.
enum class Tokens { kOneByOne, kAll, kAllExact };

// A block's shared memory.
template <int kK>
struct DecodeMemory {
  static constexpr int kPitch = kK + 16;

  float* q;                  // [tokens,kPitch], before the multiplication with q_factor
  float* k;                  // [tokens,kPitch], before the multiplication with k_factor
  float* v;                  // [tokens,rows of the block]; an output overwrites its value
  float* decay;              // [kTogether]: exp(g), or the sum of g up to the token if the tokens go together
  float* beta;               // [kTogether]
  float* q_factor;           // [kTogether]
  float* k_factor;           // [kTogether]
  TogetherScratch* scratch;  // [warps], of kAll and kAllExact

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

inline std::size_t decode_memory_bytes(std::int64_t k, Tokens kind, std::int64_t tokens, std::int64_t rows,
                                       std::int64_t tile_warps) {
  const bool together = kind != Tokens::kOneByOne;
  const std::int64_t slots = together ? kTogether : tokens;
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(slots * (2 * (k + 16) + rows) + 4 * kTogether);
  return bytes + (together ? sizeof(TogetherScratch) * static_cast<std::size_t>(tile_warps) : 0);
}

// The elements of [tokens,16 rows] that a lane reads and writes: one row of tokens token(0), token(1), ...
struct WarpRows {
  __device__ static int row() { return static_cast<int>(threadIdx.x) % 16; }
  __device__ static int token(int i) { return 2 * i + static_cast<int>(threadIdx.x) % kWarpSize / 16; }
};

// If the tokens go together, replaces g by its sum up to the token. kTogether neighboring lanes have a token each, with
// g = 0 and beta = 0 beyond the last. All lanes of the warp call it.
__device__ inline Gate accumulated(Gate gate, bool together, int t) {
  if (!together) return gate;
#pragma unroll
  for (int distance = 1; distance < kTogether; distance *= 2) {
    const float before = __shfl_up_sync(0xFFFFFFFFU, gate.g, static_cast<unsigned>(distance), kTogether);
    if (t >= distance) gate.g += before;
  }
  return gate;
}
// Stores to DecodeMemory::decay of the token; beta is kTogether floats further on.
__device__ inline void store_gate(const Gate& gate, bool together, float* decay) {
  decay[0] = together ? gate.g : expf(gate.g);
  decay[kTogether] = gate.beta;
}

// Applies all tokens to a warp's tile.
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

// Kernel decode, for one thread.
template <int kK, class State, Tokens kTokens>
struct DecodeBlock {
  using Tile = StateTile<kK, StateLayout::kVK>;
  using Memory = DecodeMemory<kK>;
  static constexpr bool kAllTogether = kTokens != Tokens::kOneByOne;
  static constexpr int kRounds = kAllTogether ? 2 : 1;  // tokens of a warp whose loads precede the state's
  static constexpr int kPasses = kAllTogether ? 4 : 1;  // over the warp's v: 16 rows of two tokens each

  const Decode& p;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int lane = thread % kWarpSize;
  const int head = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.z);
  const int count = p.tokens;
  const int slots = kAllTogether ? kTogether : count;  // tokens in shared memory
  const int k_head = p.key_head(head);
  const int rows = p.tile_warps * Tile::kWarpV;  // of the block
  const int warp_v = warp * Tile::kWarpV;
  const int v0 = static_cast<int>(blockIdx.x) * rows + warp_v;
  const bool has_rows = warp < p.tile_warps;
  const int gate_token = thread - (warps - 1) * kWarpSize;  // of the last warp's lanes; negative in others

  // Reads the token's q and k: four elements of a lane.
  __device__ __forceinline__ void read_token(int t, RawFour& q, RawFour& k) const {
    const int column = min(4 * lane, kK - 4);
    const int token = min(t, count - 1);
    q = RawFour::read(p.q, p.q.offset(row, token, k_head) + column);
    k = RawFour::read(p.k, p.k.offset(row, token, k_head) + column);
  }

  __device__ __forceinline__ void read_values(std::uint32_t (&values)[kPasses]) const {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int t = WarpRows::token(i);
      values[i] = has_rows && t < count ? p.v.read(p.v.offset(row, t, head) + v0 + WarpRows::row()) : 0;
    }
  }

  __device__ __forceinline__ void load_state(Tile& tile, int slot) const {
    if (has_rows && slot >= 0 && p.initial_state.defined()) {
      const auto* state = static_cast<const State*>(p.initial_state.data);
      tile.load_aligned(state + p.initial_state.offset(slot, head), p.initial_state.strides[2], v0);
    } else {
      tile.clear();
    }
  }

  // Converts a token's q and k and computes their norm factors, by a warp.
  __device__ __forceinline__ void store_token(const Memory& memory, int t, const RawFour& q_bits,
                                              const RawFour& k_bits) const {
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
    // Beyond the last token the products are 0, even if the norm's eps is 0.
    if (lane == 0) memory.q_factor[t] = t < count ? p.scale * p.norm.factor(squares[0], kK) : 0.0F;
    if (lane == 0) memory.k_factor[t] = t < count ? p.norm.factor(squares[1], kK) : 0.0F;
    if (kTokens != Tokens::kAllExact && p.norm.norm == QkNorm::kRms && within) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q[i] *= p.norm.q_weight.load(p.norm.q_weight.offset(k_head) + 4 * lane + i);
        k[i] *= p.norm.k_weight.load(p.norm.k_weight.offset(k_head) + 4 * lane + i);
      }
    }
    if (within) {
      *reinterpret_cast<float4*>(memory.q + t * memory.kPitch + 4 * lane) = {q[0], q[1], q[2], q[3]};
      *reinterpret_cast<float4*>(memory.k + t * memory.kPitch + 4 * lane) = {k[0], k[1], k[2], k[3]};
    }
  }

  __device__ __forceinline__ void store_values(const std::uint32_t (&bits)[kPasses], float* values) const {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      if (has_rows && WarpRows::token(i) < count) values[WarpRows::token(i) * rows] = p.v.convert(bits[i]);
    }
#pragma unroll 1
    for (int t = WarpRows::token(kPasses); has_rows && t < count; t += 2) {  // one by one
      values[t * rows] = p.v.load(p.v.offset(row, t, head) + v0 + WarpRows::row());
    }
  }

  __device__ __forceinline__ void store_gates(const Memory& memory, const GateBits& bits) const {
    if (gate_token < 0) return;
    Gate gate = gate_token < count ? p.compute_gate(bits) : Gate{};
    gate = accumulated(gate, kAllTogether, gate_token % kTogether);
    if (gate_token < kTogether) store_gate(gate, kAllTogether, memory.decay + gate_token);
  }

  __device__ __forceinline__ void run(float4* shared) const {
    const Memory memory(shared, slots, rows);
    pdl_wait();
    RawFour q_bits[kRounds];
    RawFour k_bits[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) read_token(warp + r * warps, q_bits[r], k_bits[r]);
    std::uint32_t value_bits[kPasses];
    read_values(value_bits);
    GateBits gate_bits{};
    if (gate_token >= 0 && gate_token < count) gate_bits = p.read_gate(row, gate_token, head);
    int slot;
    if (!find_slot(p.slots, row, slot)) return;
    Tile tile;
    load_state(tile, slot);

#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      if (warp + r * warps < slots) store_token(memory, warp + r * warps, q_bits[r], k_bits[r]);
    }
#pragma unroll 1
    for (int t = warp + kRounds * warps; t < slots; t += warps) {  // one by one, with fewer warps than tokens
      RawFour q;
      RawFour k;
      read_token(t, q, k);
      store_token(memory, t, q, k);
    }
    float* const values = memory.v + warp_v + WarpRows::row();
    store_values(value_bits, values);
    store_gates(memory, gate_bits);
    __syncthreads();
    if (!has_rows) return;
    decode_tokens<kK, kTokens>(tile, memory, count, rows, warp_v, [&](int t) {
      if (!p.snapshots.defined()) return;
      auto* state = static_cast<State*>(p.snapshots.data);
      tile.store_streaming(state + p.snapshots.offset(row, t, head), p.snapshots.strides[3], v0);
    });
    if (slot >= 0 && p.final_state.defined()) {
      auto* state = static_cast<State*>(p.final_state.data);
      tile.store_aligned(state + p.final_state.offset(slot, head), p.final_state.strides[2], v0);
    }
    __syncwarp();
#pragma unroll 1
    for (int t = WarpRows::token(0); t < count; t += 2) {
      p.o.store(p.o.offset(row, t, head) + v0 + WarpRows::row(), values[t * rows]);
    }
    pdl_trigger();
  }
};

// At least half as many warps as tokens; without cu_seqlens.
template <int kK, class State, Tokens kTokens>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize, 2) decode(const __grid_constant__ Decode p) {
  extern __shared__ float4 shared[];
  DecodeBlock<kK, State, kTokens>{p}.run(shared);
}

// One token, without snapshots. Warps share nothing, so that there is no barrier; every warp reads q and k for its few
// rows of the state, and two of them in each access. The shortest latency for few sequences; and the more of a row each
// access covers, the faster memory is, so that it is the fastest kernel for many states too.
template <class State>
constexpr int kDecodeOneWarps = sizeof(State) == 4 ? 8 : 4;  // of a block

// Four rows of f32, eight of bf16.
template <int kK, class State>
using DecodeOneTile = std::conditional_t<sizeof(State) == 4, StateTile<kK, StateLayout::kVK, 2, 16>,
                                         StateTile<kK, StateLayout::kVK, kK / 32, kK / 8, 8>>;

template <int kK, class State>
__global__ void __launch_bounds__(kDecodeOneWarps<State>* kWarpSize, sizeof(State) == 4 ? 4 : 7)
    decode_one(const __grid_constant__ Decode p) {
  using Tile = DecodeOneTile<kK, State>;
  constexpr int kFours = Tile::kRun / 4;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int head = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.z);
  const int k_head = p.key_head(head);
  const int v0 = (static_cast<int>(blockIdx.x) * p.tile_warps + warp) * Tile::kWarpV;
  pdl_wait();
  int slot;
  if (!find_slot(p.slots, row, slot)) return;

  RawFour q_bits[Tile::kSteps * kFours];
  RawFour k_bits[Tile::kSteps * kFours];
#pragma unroll
  for (int n = 0; n < Tile::kSteps * kFours; ++n) {
    const int at = Tile::k_of(n / kFours) + n % kFours * 4;
    q_bits[n] = RawFour::read(p.q, p.q.offset(row, 0, k_head) + at);
    k_bits[n] = RawFour::read(p.k, p.k.offset(row, 0, k_head) + at);
  }
  const int own_v = v0 + Tile::own_row();
  const std::uint32_t v_bits = p.v.read(p.v.offset(row, 0, head) + own_v);
  const GateBits gate_bits = p.read_gate(row, 0, head);
  Tile tile;
  if (slot >= 0 && p.initial_state.defined()) {
    const auto* state = static_cast<const State*>(p.initial_state.data);
    tile.load_aligned(state + p.initial_state.offset(slot, head), p.initial_state.strides[2], v0);
  } else {
    tile.clear();
  }

  RegisterRow<Tile> q;
  RegisterRow<Tile> k;
  float squares[2] = {};
#pragma unroll
  for (int n = 0; n < Tile::kSteps * kFours; ++n) {
    float queries[4];
    float keys[4];
    q_bits[n].convert(p.q, queries);
    k_bits[n].convert(p.k, keys);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      squares[0] = fmaf(queries[i], queries[i], squares[0]);
      squares[1] = fmaf(keys[i], keys[i], squares[1]);
      q.x[n / kFours][n % kFours * 4 + i] = queries[i];
      k.x[n / kFours][n % kFours * 4 + i] = keys[i];
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
      for (int i = 0; i < Tile::kRun; ++i) {
        q.x[j][i] *= p.norm.q_weight.load(p.norm.q_weight.offset(k_head) + Tile::k_of(j) + i);
        k.x[j][i] *= p.norm.k_weight.load(p.norm.k_weight.offset(k_head) + Tile::k_of(j) + i);
      }
    }
  }
  const float o = tile.step(k, q, scalars, p.v.convert(v_bits));
  if (slot >= 0 && p.final_state.defined()) {
    auto* state = static_cast<State*>(p.final_state.data);
    tile.store_aligned(state + p.final_state.offset(slot, head), p.final_state.strides[2], v0);
  }
  if (Tile::owns_row()) p.o.store(p.o.offset(row, 0, head) + own_v, o);
  pdl_trigger();
}

}  // namespace thalweg::cu
