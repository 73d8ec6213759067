#pragma once

// The fused step for many sequences. A block of each multiprocessor takes one key head of one sequence after the other,
// with all value heads that share it, so that nobody else reads the convolution's inputs that it replaces.
//
// The states come by bulk copies, a head's at a time, into a ring in shared memory: how much is on its way depends
// neither on registers nor on what the warps are waiting for. The warps hold eight rows of the head each and go from
// head to head on their own; they meet when the tokens of a key head have been prepared, and when its outputs are
// complete. What is to be prepared next is asked for into registers before the heads are begun.

#include "cuda/common/mbarrier.h"
#include "cuda/gated_delta/decode_step_kernel.h"

namespace thalweg::cu {

constexpr int kStreamStepV = 128;
constexpr int kStreamStepMaxHeads = 4;  // of a key head, at most
constexpr int kStreamStepWarps = 16;
constexpr int kStreamStepThreads = kStreamStepWarps * kWarpSize;
constexpr int kStreamStepMaxStages = 6;

template <int kK>
struct StreamMemory {
  static constexpr int kBarriersBytes = 128;  // the stages begin at a whole line
  static_assert(kBarriersBytes >= kStreamStepMaxStages * static_cast<int>(sizeof(std::uint64_t)));

  MbarrierArray full;  // a stage has its state
  char* stages;
  float* q;  // [tokens,kPitch]
  float* k;  // [tokens,kPitch]
  float* v;  // [2,tokens,heads,kStreamStepV], of this key head and the one before; the values make way for the outputs
  float* gates;  // [heads,2,kTogether]: decay and beta
  DecodeStepMemory<kK> more;

  __device__ StreamMemory(float4* memory, int stages_bytes, int tokens, int heads)
      : full{static_cast<std::uint32_t>(__cvta_generic_to_shared(memory))},
        stages(reinterpret_cast<char*>(memory) + kBarriersBytes),
        q(reinterpret_cast<float*>(stages + stages_bytes)),
        k(q + tokens * DecodeMemory<kK>::kPitch),
        v(k + tokens * DecodeMemory<kK>::kPitch),
        gates(v + 2 * tokens * heads * kStreamStepV),
        more(gates + heads * 2 * kTogether) {}
  static std::size_t bytes(std::size_t stages_bytes, std::int64_t tokens, std::int64_t heads) {
    const std::int64_t floats = tokens * 2 * (DecodeMemory<kK>::kPitch + heads * kStreamStepV) + heads * 2 * kTogether;
    return kBarriersBytes + stages_bytes + sizeof(float) * static_cast<std::size_t>(floats) +
           DecodeStepMemory<kK>::bytes(kStreamStepWarps);
  }
};

// A key head of a sequence, and what a thread has asked for of it.
template <int kTokens>
struct StreamUnit {
  static constexpr int kPasses = kTokens == 1 ? 1 : 4;  // over the outputs

  int row;
  int from;
  int slot;
  bool valid;
  ConvChannel<kTokens> inputs;  // of one channel
  std::uint32_t key_weight;
  std::uint32_t z[kPasses];
  GateBits gate;
};

template <int kK, class State, int kTokens>
class StreamBlock {
 public:
  __device__ StreamBlock(const DecodeStep& p, float4* shared)
      : p_(p), memory_(shared, p.stages * kStageBytes, p.tokens, p.ratio) {}

  __device__ void run() {
    if (thread() == 0) {
      for (RingStage stage; stage.parity == 0; stage.advance(p_.stages)) {
        memory_.full[stage.index].init(1);
      }
      fence_mbarrier_init();
    }
    pdl_wait();
    Unit next;
    ask_for(static_cast<int>(blockIdx.x), next);  // before the states, which would otherwise come first
    __syncthreads();
    if (thread() == kAsking) {
      find_next_state();
      for (RingStage stage; stage.parity == 0; stage.advance(p_.stages)) ask_for_state(stage);
    }
    take_units(next);
    pdl_trigger();
  }

 private:
  using Tile = StateTile<kK, StateLayout::kVK, 2>;
  using Unit = StreamUnit<kTokens>;
  static constexpr int kAskingWarp = kStreamStepWarps / 2;
  static constexpr int kAsking = kAskingWarp * kWarpSize;  // the thread that asks for states
  static constexpr int kStageBytes = kStreamStepV * kK * static_cast<int>(sizeof(State));
  static_assert(Tile::kWarpV * kStreamStepWarps == kStreamStepV);

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int warp() { return thread() / kWarpSize; }
  __device__ static int lane() { return thread() % kWarpSize; }

  __device__ int head_of(int from, int i) const {
    return p_.head_map == HeadMap::kTiled ? from + i * p_.hk : from * p_.ratio + i;
  }
  __device__ int channels() const { return 2 * kK + p_.ratio * kStreamStepV; }
  __device__ int channel_of(int from, int i) const {
    if (i < 2 * kK) return (i < kK ? 0 : p_.hk * kK) + from * kK + i % kK;
    const int value = i - 2 * kK;
    return 2 * p_.hk * kK + head_of(from, value / kStreamStepV) * kStreamStepV + value % kStreamStepV;
  }

  // The first key head from next_unit_ on that has states.
  __device__ void find_next_state() {
    next_slot_ = -1;
    while (next_unit_ < p_.key_heads && (!find_slot(p_.slots, next_unit_ / p_.hk, next_slot_) || next_slot_ < 0)) {
      next_unit_ += static_cast<int>(gridDim.x);
    }
    next_from_ = next_unit_ % p_.hk;
  }
  // Asks for the next head's state, if there is one.
  __device__ void ask_for_state(const RingStage& stage) {
    if (next_unit_ >= p_.key_heads) return;
    const std::int64_t from = p_.state_in.offset(next_slot_, head_of(next_from_, next_head_));
    const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory_.stages)) +
                    static_cast<std::uint32_t>(stage.index * kStageBytes);
    memory_.full[stage.index].arrive_expect_tx(kStageBytes);
    bulk_copy(to, static_cast<const State*>(p_.state_in.data) + from, kStageBytes, memory_.full[stage.index]);
    if (++next_head_ < p_.ratio) return;
    next_head_ = 0;
    next_unit_ += static_cast<int>(gridDim.x);
    find_next_state();
  }

  __device__ void take_units(Unit& next) {
    // Of the thread's outputs, which are all of one row of V.
    const std::uint32_t norm_weight = p_.z.defined() ? p_.norm_weight.read(thread() % kStreamStepV) : 0;
    int half = 0;
    prepare_gates(next);
#pragma unroll 1
    for (int number = static_cast<int>(blockIdx.x); number < p_.key_heads; number += static_cast<int>(gridDim.x)) {
      float* const v = memory_.v + half * p_.tokens * p_.ratio * kStreamStepV;
      half ^= 1;
      const int row = next.row;
      const int from = next.from;
      const int slot = next.slot;
      const bool valid = next.valid;
      std::uint32_t z[Unit::kPasses];
#pragma unroll
      for (int pass = 0; pass < Unit::kPasses; ++pass) z[pass] = next.z[pass];
      if (valid) prepare_tokens(next, v);
      ask_for(number + static_cast<int>(gridDim.x), next);
      __syncthreads();
      memory_.more.find_factors(p_, warp());
#pragma unroll 1
      for (int i = 0; valid && i < p_.ratio; ++i) run_head(row, slot, head_of(from, i), i, v);
      __syncthreads();
      prepare_gates(next);
      if (!valid) continue;
#pragma unroll
      for (int pass = 0; pass < Unit::kPasses; ++pass) {
        write_output(row, from, thread() + pass * kStreamStepThreads, v, z[pass], norm_weight);
      }
#pragma unroll 1
      for (int output = thread() + Unit::kPasses * kStreamStepThreads; output < p_.tokens * p_.ratio * kStreamStepV;
           output += kStreamStepThreads) {
        write_output(row, from, output, v, read_z(row, from, output), norm_weight);
      }
    }
  }

  __device__ void ask_for(int number, Unit& unit) const {
    unit.valid = false;
    if (number >= p_.key_heads) return;
    unit.row = number / p_.hk;
    unit.from = number % p_.hk;
    unit.valid = find_slot(p_.slots, unit.row, unit.slot);
    if (!unit.valid) return;
    read_channel(unit.row, unit.from, unit.slot, thread(), unit.inputs, unit.key_weight);
#pragma unroll
    for (int pass = 0; pass < Unit::kPasses; ++pass) {
      unit.z[pass] = read_z(unit.row, unit.from, thread() + pass * kStreamStepThreads);
    }
    const int t = lane() % kTogether;
    const int i = lane() / kTogether;
    if (warp() == kStreamStepWarps - 1 && t < p_.tokens && i < p_.ratio) {
      unit.gate = p_.gates.read(unit.row, t, head_of(unit.from, i));
    }
  }
  __device__ void read_channel(int row, int from, int slot, int i, ConvChannel<kTokens>& inputs,
                               std::uint32_t& key_weight) const {
    if (i >= channels()) return;
    inputs.read(p_, row, slot, channel_of(from, i));
    if (p_.norm.norm == QkNorm::kRms && i < 2 * kK) {
      const auto& weights = i < kK ? p_.norm.q_weight : p_.norm.k_weight;
      key_weight = weights.read(weights.offset(from) + i % kK);
    }
  }
  // Outputs are numbered as they lie in v: [tokens,heads,kStreamStepV].
  __device__ std::uint32_t read_z(int row, int from, int output) const {
    if (!p_.z.defined() || output >= p_.tokens * p_.ratio * kStreamStepV) return 0;
    const int t = p_.tokens == 1 ? 0 : output / (p_.ratio * kStreamStepV);
    const int i = output / kStreamStepV - t * p_.ratio;
    return p_.z.read(p_.z.offset(row, t, head_of(from, i)) + output % kStreamStepV);
  }

  // The key head's tokens into shared memory: q, k, v of all its value heads.
  __device__ void prepare_tokens(Unit& unit, float* v) const {
    convolve(unit.row, unit.from, unit.slot, thread(), unit.inputs, unit.key_weight, v);
#pragma unroll 1
    for (int i = thread() + kStreamStepThreads; i < channels(); i += kStreamStepThreads) {
      read_channel(unit.row, unit.from, unit.slot, i, unit.inputs, unit.key_weight);
      convolve(unit.row, unit.from, unit.slot, i, unit.inputs, unit.key_weight, v);
    }
  }
  // The gates of its value heads, by a warp that has little to do with outputs.
  __device__ void prepare_gates(const Unit& unit) const {
    const int t = lane() % kTogether;
    const int i = lane() / kTogether;
    if (unit.valid && warp() == kStreamStepWarps - 1 && t < p_.tokens && i < p_.ratio) {
      store_gate(p_.gates.compute(unit.gate), false, memory_.gates + 2 * kTogether * i + t);
    }
  }
  // A warp's channels are all of q, all of k or all of v.
  __device__ void convolve(int row, int from, int slot, int i, ConvChannel<kTokens>& inputs, std::uint32_t key_weight,
                           float* v) const {
    if (i >= channels()) return;
    const int channel = channel_of(from, i);
    if (i >= 2 * kK) {
      float* const to = v + i - 2 * kK;
      inputs.prepare(p_, row, channel, [&](int t, float value) { to[t * p_.ratio * kStreamStepV] = value; });
    } else {
      float* const to = i < kK ? memory_.q + i : memory_.k + i - kK;
      const float factor = p_.norm.norm == QkNorm::kRms ? p_.norm.q_weight.convert(key_weight) : 1.0F;
      inputs.prepare(p_, row, channel, [&](int t, float value) {
        to[t * DecodeMemory<kK>::kPitch] = value * factor;
        const float squares = warp_sum(value * value);
        if (lane() == 0) memory_.more.key_squares[t * memory_.more.kKeyWarps + i / kWarpSize] = squares;
      });
    }
    if (p_.taps > 0 && slot >= 0) inputs.update_state(p_, slot, channel);
  }

  // The warp's rows of the i-th value head of the key head.
  __device__ void run_head(int row, int slot, int head, int i, float* v) {
    const int v0 = warp() * Tile::kWarpV;
    const int pitch = p_.ratio * kStreamStepV;
    Tile tile;
    if (slot >= 0) {
      memory_.full[stage_.index].wait(stage_.parity);
      tile.load_fours(reinterpret_cast<const State*>(memory_.stages + stage_.index * kStageBytes), kK, v0);
      if (warp() != kAskingWarp) named_barrier_arrive(1 + stage_.index, kStreamStepThreads);
    } else {
      tile.clear();
    }
    const Tokens tokens{memory_.q, memory_.k, v + i * kStreamStepV, memory_.gates + 2 * kTogether * i,
                        memory_.more.q_factors(warp())};
    run_tokens<DecodeMemory<kK>::kPitch>(tile, tokens, p_.tokens, pitch, v0, [&](int t) {
      if (!p_.snapshots.defined()) return;
      auto* state = static_cast<State*>(p_.snapshots.data);
      tile.store_fours(state + p_.snapshots.offset(row, t, head), p_.snapshots.strides[3], v0);
    });
    if (slot >= 0) {
      auto* state = static_cast<State*>(p_.state_out.data);
      tile.store_fours(state + p_.state_out.offset(slot, head), p_.state_out.strides[2], v0);
      if (warp() == kAskingWarp) {
        named_barrier(1 + stage_.index, kStreamStepThreads);  // all warps have read the stage
        if (thread() == kAsking) ask_for_state(stage_);
      }
      stage_.advance(p_.stages);
    }
  }

  // A warp's outputs are of one head and token.
  __device__ void write_output(int row, int from, int output, const float* v, std::uint32_t z,
                               std::uint32_t norm_weight) const {
    if (output >= p_.tokens * p_.ratio * kStreamStepV) return;
    const int t = p_.tokens == 1 ? 0 : output / (p_.ratio * kStreamStepV);
    const int i = output / kStreamStepV - t * p_.ratio;
    const int place = output % kStreamStepV;
    float value = v[output];
    if (p_.z.defined()) {
      static_assert(kStreamStepV == 4 * kWarpSize);
      const float4 four = reinterpret_cast<const float4*>(v + output - place)[lane()];
      const float squares = warp_sum(four.x * four.x + four.y * four.y + (four.z * four.z + four.w * four.w));
      value = gated_norm(p_, value, squares, z, norm_weight);
    }
    p_.y.store(p_.y.offset(row, t, head_of(from, i)) + place, value);
  }

  // What run_tokens asks of the tokens.
  struct Tokens {
    const float* q;
    const float* k;
    float* v;
    const float* gates;
    const float* factors;

    __device__ TokenScalars scalars(int t) const {
      return {gates[t], gates[kTogether + t], factors[t], factors[kTogether + t]};
    }
  };

  const DecodeStep& p_;
  const StreamMemory<kK> memory_;
  RingStage stage_;  // of the warp's next head
  // Whose state is to be asked for next, by thread kAsking.
  int next_unit_ = static_cast<int>(blockIdx.x);
  int next_from_ = 0;
  int next_slot_ = -1;
  int next_head_ = 0;
};

// V = kStreamStepV, at most kStreamStepMaxHeads value heads of a key head, states without gaps in a head, 1 to kTokens
// tokens.
template <int kK, class State, int kTokens>
__global__ void __launch_bounds__(kStreamStepThreads, 1) stream_step(const __grid_constant__ DecodeStep p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ float4 shared[];
  StreamBlock<kK, State, kTokens>(p, shared).run();
#endif
}

}  // namespace thalweg::cu
