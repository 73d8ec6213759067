#pragma once

// The fused step for many sequences. A persistent block on each multiprocessor takes one key head of one sequence after
// the other, with all value heads that share it: no other block reads the convolution's inputs that it replaces.
//
// Roles: every warp convolves channels, holds eight rows of the current value head's state, and writes outputs; the
//   last warp computes the gates; one thread, kCopyThread, issues the copies of states.
// Shared memory: a ring of states of value heads, filled by bulk copies; the tokens of the current key head, with v
//   twice.
// Pipeline: warps advance through the value heads on their own. The block meets when the tokens of a key head are
//   prepared and when its outputs are complete. The inputs of the next key head are loaded into registers in between.
// Barriers: mbarrier full[stage]; for each stage a named barrier at which all warps arrive and the copying warp waits.

#include "cuda/common/mbarrier.h"
#include "cuda/gated_delta/decode_step_kernel.h"

namespace thalweg::cu {

constexpr int kStreamStepV = 128;
constexpr int kStreamStepMaxHeads = 4;  // value heads of a key head
constexpr int kStreamStepWarps = 16;
constexpr int kStreamStepThreads = kStreamStepWarps * kWarpSize;
constexpr int kStreamStepMaxStages = 6;

template <int kK>
struct StreamMemory {
  static constexpr int kBarriersBytes = 128;  // the stages begin at a cache line
  static_assert(kBarriersBytes >= kStreamStepMaxStages * static_cast<int>(sizeof(std::uint64_t)));

  MbarrierArray full;
  char* stages;
  float* q;      // [tokens,kPitch]
  float* k;      // [tokens,kPitch]
  float* v;      // [2,tokens,heads,kStreamStepV], of this key head and the one before; outputs overwrite values
  float* gates;  // [heads,2,kTogether]: decay and beta
  DecodeStepMemory<kK> step_memory;
  // With replays:
  float* products;  // kTokenProducts
  float* with_q;    // [tokens,kStreamStepV]

  __device__ StreamMemory(float4* memory, int stages_bytes, int tokens, int heads)
      : full{static_cast<std::uint32_t>(__cvta_generic_to_shared(memory))},
        stages(reinterpret_cast<char*>(memory) + kBarriersBytes),
        q(reinterpret_cast<float*>(stages + stages_bytes)),
        k(q + tokens * DecodeMemory<kK>::kPitch),
        v(k + tokens * DecodeMemory<kK>::kPitch),
        gates(v + 2 * tokens * heads * kStreamStepV),
        step_memory(gates + heads * 2 * kTogether),
        products(step_memory.q_factors(kStreamStepWarps)),  // behind it
        with_q(products + kTokenProducts) {}
  static std::size_t bytes(std::size_t stages_bytes, bool replays, std::int64_t tokens, std::int64_t heads) {
    const std::int64_t floats = tokens * 2 * (DecodeMemory<kK>::kPitch + heads * kStreamStepV) + heads * 2 * kTogether +
                                (replays ? kTokenProducts + tokens * kStreamStepV : 0);
    return kBarriersBytes + stages_bytes + sizeof(float) * static_cast<std::size_t>(floats) +
           DecodeStepMemory<kK>::bytes(kStreamStepWarps);
  }
};

// A key head of a sequence, and a thread's inputs of it.
template <int kTokens, class Sequence>
struct KeyHeadInputs {
  static constexpr int kPasses = kTokens == 1 ? 1 : 4;  // over the outputs

  Sequence tokens;
  int k_head;
  bool valid;
  ConvChannel<kTokens> channel;
  std::uint32_t norm_weight_bits;
  std::uint32_t z[kPasses];
  GateBits gate;
};

template <int kK, class State, int kTokens, class Sequence>
class StreamBlock {
 public:
  __device__ StreamBlock(const DecodeStep& p, float4* shared)
      : p_(p), memory_(shared, p.stages * kStageBytes, p.most_tokens, p.ratio) {}

  __device__ void run() {
    if (thread() == 0) {
      for (RingStage stage; stage.parity == 0; stage.advance(p_.stages)) {
        memory_.full[stage.index].init(1);
      }
      fence_mbarrier_init();
    }
    pdl_wait();
    Inputs next;
    load_inputs(static_cast<int>(blockIdx.x), next);  // before the states, behind which they would wait
    __syncthreads();
    if (thread() == kCopyThread) {
      find_next_state();
      for (RingStage stage; stage.parity == 0; stage.advance(p_.stages)) copy_next_state(stage);
    }
    run_key_heads(next);
    pdl_trigger();
  }

 private:
  using Tile = StateTile<kK, StateLayout::kVK, 2>;
  using Inputs = KeyHeadInputs<kTokens, Sequence>;
  static constexpr int kCopyWarp = kStreamStepWarps / 2;
  static constexpr int kCopyThread = kCopyWarp * kWarpSize;  // issues the copies of states
  static constexpr int kStageBytes = kStreamStepV * kK * static_cast<int>(sizeof(State));
  static_assert(Tile::kWarpV * kStreamStepWarps == kStreamStepV);

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int warp() { return thread() / kWarpSize; }
  __device__ static int lane() { return thread() % kWarpSize; }

  __device__ int head_of(int k_head, int i) const {
    return p_.head_map == HeadMap::kTiled ? k_head + i * p_.hk : k_head * p_.ratio + i;
  }
  __device__ int channels() const { return 2 * kK + p_.ratio * kStreamStepV; }
  __device__ int channel_of(int k_head, int i) const {
    if (i < 2 * kK) return (i < kK ? 0 : p_.hk * kK) + k_head * kK + i % kK;
    const int value = i - 2 * kK;
    return 2 * p_.hk * kK + head_of(k_head, value / kStreamStepV) * kStreamStepV + value % kStreamStepV;
  }

  // Advances next_index_ to the first key head that has states.
  __device__ void find_next_state() {
    next_slot_ = -1;
    while (next_index_ < p_.key_heads && (!find_slot(p_.slots, next_index_ / p_.hk, next_slot_) || next_slot_ < 0)) {
      next_index_ += static_cast<int>(gridDim.x);
    }
    next_k_head_ = next_index_ % p_.hk;
  }
  // Starts the copy of the next value head's state, if there is one.
  __device__ void copy_next_state(const RingStage& stage) {
    if (next_index_ >= p_.key_heads) return;
    const std::int64_t offset = p_.state_in.offset(next_slot_, head_of(next_k_head_, next_head_));
    const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory_.stages)) +
                    static_cast<std::uint32_t>(stage.index * kStageBytes);
    memory_.full[stage.index].arrive_expect_tx(kStageBytes);
    bulk_copy(to, static_cast<const State*>(p_.state_in.data) + offset, kStageBytes, memory_.full[stage.index]);
    if (++next_head_ < p_.ratio) return;
    next_head_ = 0;
    next_index_ += static_cast<int>(gridDim.x);
    find_next_state();
  }

  __device__ void run_key_heads(Inputs& next) {
    // All outputs of a thread are of one row of V.
    const std::uint32_t norm_weight = p_.z.defined() ? p_.norm_weight.read(thread() % kStreamStepV) : 0;
    int half = 0;
    prepare_gates(next);
#pragma unroll 1
    for (int number = static_cast<int>(blockIdx.x); number < p_.key_heads; number += static_cast<int>(gridDim.x)) {
      float* const v = memory_.v + half * p_.most_tokens * p_.ratio * kStreamStepV;
      half ^= 1;
      const Sequence sequence = next.tokens;
      const int k_head = next.k_head;
      const bool valid = next.valid;
      std::uint32_t z[Inputs::kPasses];
#pragma unroll
      for (int pass = 0; pass < Inputs::kPasses; ++pass) z[pass] = next.z[pass];
      if (valid) prepare_tokens(next, v);
      load_inputs(number + static_cast<int>(gridDim.x), next);
      __syncthreads();
      memory_.step_memory.find_factors(p_, sequence.count, warp());
      if constexpr (Sequence::kReplays) {
        multiply_tokens<kK, DecodeMemory<kK>::kPitch>(memory_.q, memory_.k, valid ? sequence.count : 0,
                                                      sequence.first_own(), warp(), kStreamStepWarps, memory_.products);
        __syncthreads();
      }
#pragma unroll 1
      for (int i = 0; valid && i < p_.ratio; ++i) run_head(sequence, head_of(k_head, i), i, v);
      if (Sequence::kReplays && !valid && sequence.slot >= 0) skip_heads();
      __syncthreads();
      prepare_gates(next);
      if (!valid) continue;
      if constexpr (Sequence::kReplays) {
        // One copy of the code, which has to fit into the cache of instructions.
#pragma unroll 1
        for (int pass = 0; pass < Inputs::kPasses; ++pass) {
          std::uint32_t bits = z[0];
#pragma unroll
          for (int i = 1; i < Inputs::kPasses; ++i) bits = pass == i ? z[i] : bits;
          write_output(sequence, k_head, first_output(sequence) + pass * kStreamStepThreads, v, bits, norm_weight);
        }
      } else {
#pragma unroll
        for (int pass = 0; pass < Inputs::kPasses; ++pass) {
          write_output(sequence, k_head, first_output(sequence) + pass * kStreamStepThreads, v, z[pass], norm_weight);
        }
      }
#pragma unroll 1
      for (int output = first_output(sequence) + Inputs::kPasses * kStreamStepThreads;
           output < sequence.count * p_.ratio * kStreamStepV; output += kStreamStepThreads) {
        write_output(sequence, k_head, output, v, read_z(sequence, k_head, output), norm_weight);
      }
    }
  }

  __device__ void load_inputs(int number, Inputs& inputs) const {
    inputs.valid = false;
    if (number >= p_.key_heads) return;
    inputs.k_head = number % p_.hk;
    inputs.valid = inputs.tokens.find(p_, number / p_.hk);
    if (!inputs.valid) return;
    read_channel(inputs.tokens, inputs.k_head, thread(), inputs.channel, inputs.norm_weight_bits);
#pragma unroll
    for (int pass = 0; pass < Inputs::kPasses; ++pass) {
      inputs.z[pass] = read_z(inputs.tokens, inputs.k_head, first_output(inputs.tokens) + pass * kStreamStepThreads);
    }
    const int t = lane() % kTogether;
    const int i = lane() / kTogether;
    if (warp() == kStreamStepWarps - 1 && t < inputs.tokens.count && i < p_.ratio) {
      inputs.gate = inputs.tokens.read_gate(p_, t, head_of(inputs.k_head, i));
    }
  }
  __device__ void read_channel(const Sequence& sequence, int k_head, int i, ConvChannel<kTokens>& inputs,
                               std::uint32_t& norm_weight_bits) const {
    if (i >= channels()) return;
    inputs.read(p_, sequence, channel_of(k_head, i));
    if (p_.norm.norm == QkNorm::kRms && i < 2 * kK) {
      const auto& weights = i < kK ? p_.norm.q_weight : p_.norm.k_weight;
      norm_weight_bits = weights.read(weights.offset(k_head) + i % kK);
    }
  }
  // Outputs have the order of v: [tokens,heads,kStreamStepV]. Those of tokens that are replayed do not count.
  __device__ int first_output(const Sequence& sequence) const {
    return sequence.first_own() * p_.ratio * kStreamStepV + thread();
  }
  __device__ int token_of(int output) const {
    static_assert(kStreamStepMaxHeads == 4);
    const int row = output / kStreamStepV;
    if (kTokens == 1) return 0;
    return p_.ratio == 3 ? row * 43 / 128 : row >> (p_.ratio / 2);  // exact below 128
  }
  __device__ bool is_output(const Sequence& sequence, int output) const {
    return output < sequence.count * p_.ratio * kStreamStepV && sequence.is_own(token_of(output));
  }
  __device__ std::uint32_t read_z(const Sequence& sequence, int k_head, int output) const {
    if (!p_.z.defined() || !is_output(sequence, output)) return 0;
    const int t = token_of(output);
    const int i = output / kStreamStepV - t * p_.ratio;
    return p_.z.read(p_.z.offset(sequence.row, sequence.place(t), head_of(k_head, i)) + output % kStreamStepV);
  }

  // Convolves the key head's q and k, and v of all its value heads, into shared memory.
  __device__ void prepare_tokens(Inputs& inputs, float* v) const {
    convolve(inputs.tokens, inputs.k_head, thread(), inputs.channel, inputs.norm_weight_bits, v);
#pragma unroll 1
    for (int i = thread() + kStreamStepThreads; i < channels(); i += kStreamStepThreads) {
      read_channel(inputs.tokens, inputs.k_head, i, inputs.channel, inputs.norm_weight_bits);
      convolve(inputs.tokens, inputs.k_head, i, inputs.channel, inputs.norm_weight_bits, v);
    }
  }
  // Computes the gates of its value heads, by the last warp.
  __device__ void prepare_gates(const Inputs& inputs) const {
    const int t = lane() % kTogether;
    const int i = lane() / kTogether;
    if (inputs.valid && warp() == kStreamStepWarps - 1 && t < inputs.tokens.count && i < p_.ratio) {
      store_gate(p_.gates.compute(inputs.gate), false, memory_.gates + 2 * kTogether * i + t);
      if constexpr (Sequence::kReplays) inputs.tokens.keep_gate(p_, t, head_of(inputs.k_head, i), inputs.gate);
    }
  }
  // A warp's channels are all of q, all of k or all of v.
  __device__ void convolve(const Sequence& sequence, int k_head, int i, ConvChannel<kTokens>& inputs,
                           std::uint32_t norm_weight_bits, float* v) const {
    if (i >= channels()) return;
    const int channel = channel_of(k_head, i);
    if (i >= 2 * kK) {
      float* const to = v + i - 2 * kK;
      const int pitch = p_.ratio * kStreamStepV;
      inputs.prepare(p_, sequence, channel, to, pitch, [&](int t, float value) { to[t * pitch] = value; });
    } else {
      float* const to = i < kK ? memory_.q + i : memory_.k + i - kK;
      const float factor = p_.norm.norm == QkNorm::kRms ? p_.norm.q_weight.convert(norm_weight_bits) : 1.0F;
      inputs.prepare(p_, sequence, channel, to, DecodeMemory<kK>::kPitch, [&](int t, float value) {
        to[t * DecodeMemory<kK>::kPitch] = value * factor;
        const float squares = warp_sum(value * value);
        if (lane() == 0) memory_.step_memory.key_squares[t * memory_.step_memory.kKeyWarps + i / kWarpSize] = squares;
      });
    }
    if (p_.taps > 0 && sequence.slot >= 0) inputs.update_state(p_, sequence.slot, channel);
    if constexpr (Sequence::kReplays) inputs.keep_drafts(p_, sequence, channel);
  }

  // Applies the tokens to the warp's rows of the i-th value head of the key head.
  __device__ void run_head(const Sequence& sequence, int head, int i, float* v) {
    const int slot = sequence.slot;
    const int v0 = warp() * Tile::kWarpV;
    const int pitch = p_.ratio * kStreamStepV;
    Tile tile;
    if (slot >= 0) {
      memory_.full[stage_.index].wait(stage_.parity);
      tile.load_fours(reinterpret_cast<const State*>(memory_.stages + stage_.index * kStageBytes), kK, v0);
      if (warp() != kCopyWarp) named_barrier_arrive(1 + stage_.index, kStreamStepThreads);
    } else {
      tile.clear();
    }
    const Tokens tokens{memory_.q, memory_.k, v + i * kStreamStepV, memory_.gates + 2 * kTogether * i,
                        memory_.step_memory.q_factors(warp())};
    if constexpr (Sequence::kReplays) {
      substitute(tile, sequence, tokens, pitch, v0);
    } else {
      run_tokens<DecodeMemory<kK>::kPitch>(tile, tokens, sequence.count, pitch, v0, [&](int t) {
        if (!p_.snapshots.defined()) return;
        auto* state = static_cast<State*>(p_.snapshots.data);
        tile.store_fours_streaming(state + p_.snapshots.offset(sequence.row, t, head), p_.snapshots.strides[3], v0);
      });
    }
    if (slot >= 0) {
      auto* state = static_cast<State*>(p_.state_out.data) + p_.state_out.offset(slot, head);
      tile.store_fours_streaming(state, p_.state_out.strides[2], v0);  // the next step alone reads it
      release_stage();
    }
  }
  // After the other warps have arrived at the stage's barrier, or will.
  __device__ void release_stage() {
    if (warp() == kCopyWarp) {
      named_barrier(1 + stage_.index, kStreamStepThreads);  // all warps have read the stage
      if (thread() == kCopyThread) copy_next_state(stage_);
    }
    stage_.advance(p_.stages);
  }
  // Takes the states of a key head whose sequence is skipped out of the ring.
  __device__ void skip_heads() {
#pragma unroll 1
    for (int i = 0; i < p_.ratio; ++i) {
      memory_.full[stage_.index].wait(stage_.parity);
      if (warp() != kCopyWarp) named_barrier_arrive(1 + stage_.index, kStreamStepThreads);
      release_stage();
    }
  }

  template <class HeadTokens>
  __device__ void substitute(Tile& tile, const Sequence& sequence, const HeadTokens& head, int pitch, int v0) const {
    const SubstitutedTokens tokens{.q = head.q,
                                   .k = head.k,
                                   .q_factor = head.factors,
                                   .k_factor = head.factors + kTogether,
                                   .v = head.v,
                                   .v_pitch = pitch,
                                   .decay = head.gates,
                                   .beta = head.gates + kTogether,
                                   .products = memory_.products,
                                   .with_q = memory_.with_q,
                                   .rows = kStreamStepV,
                                   .count = sequence.count,
                                   .first_output = sequence.first_own(),
                                   .committed = sequence.committed()};
    run_substitution<DecodeMemory<kK>::kPitch>(tile, tokens, v0);
  }

  // A warp's outputs are of one head and token.
  __device__ void write_output(const Sequence& sequence, int k_head, int output, const float* v, std::uint32_t z,
                               std::uint32_t norm_weight) const {
    if (!is_output(sequence, output)) return;
    const int t = token_of(output);
    const int i = output / kStreamStepV - t * p_.ratio;
    const int column = output % kStreamStepV;
    float value = v[output];
    if (p_.z.defined()) {
      static_assert(kStreamStepV == 4 * kWarpSize);
      const float4 four = reinterpret_cast<const float4*>(v + output - column)[lane()];
      const float squares = warp_sum(four.x * four.x + four.y * four.y + (four.z * four.z + four.w * four.w));
      value = gated_norm(p_, value, squares, z, norm_weight);
    }
    p_.y.store(p_.y.offset(sequence.row, sequence.place(t), head_of(k_head, i)) + column, value);
  }

  // The tokens of one value head, for run_tokens().
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
  RingStage stage_;  // of the warp's next value head
  // Whose state kCopyThread copies next.
  int next_index_ = static_cast<int>(blockIdx.x);
  int next_k_head_ = 0;
  int next_slot_ = -1;
  int next_head_ = 0;
};

// V = kStreamStepV; at most kStreamStepMaxHeads value heads of a key head; contiguous heads of states; 1 to kTokens
// tokens of a sequence, those that it replays included.
template <int kK, class State, int kTokens, class Sequence = RowTokens>
__global__ void __launch_bounds__(kStreamStepThreads, 1) stream_step(const __grid_constant__ DecodeStep p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ float4 shared[];
  StreamBlock<kK, State, kTokens, Sequence>(p, shared).run();
#endif
}

}  // namespace thalweg::cu
