#pragma once

// The fused decode step, for every shape, dtype, layout and stride of the contract, with replays and drafts.
//
// Roles: the blocks that share a key head of a sequence are one cluster, or there is one such block, which processes
//   its value heads and their row blocks one after the other. All threads convolve channels, a channel each; tile_warps
//   warps hold rows of the state.
// Shared memory: q, k, v and gates of up to kBlockTokens tokens.
// Barriers: the launch replaces the convolution's inputs after a cluster barrier that follows the last read.
// A sequence's tokens are those that it replays, then its own. The states are stored after the last one that is
//   committed; drafts go on in registers.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/rule.h"
#include "cuda/gated_delta/token_block.h"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "cuda/common/cluster.h"
#endif

namespace thalweg::cu {

constexpr int kMaxTaps = 8;
constexpr int kMaxStepThreads = 512;

struct PrepStep {
  Elements x;            // [B,T,2*HK*K + HV*V]
  Elements conv_weight;  // [channels,W]
  Elements conv_state;   // [slots,channels,W-1]
  GateViews gates;
  NormOptions norm;
  Elements state_in;   // [slots,HV,.,.]
  Elements state_out;  // may be state_in
  Elements snapshots;  // [B,T,HV,.,.]
  Elements z;          // [B,T,HV,V]
  Elements norm_weight;
  Elements y;
  float* outputs = nullptr;  // [B,T,HV,V], the workspace of single blocks with z and several row blocks
  Elements replay_x;         // [N or slots,R,2*HK*K + HV*V]
  GateViews replay_gates;
  const std::int32_t* replay_counts = nullptr;
  int most_replayed = 0;  // R
  bool drafts = false;
  SequenceTable sequences;
  int hk = 0;
  int hv = 0;
  int ratio = 1;  // value heads of a key head
  int v_size = 0;
  int taps = 0;        // 0: no convolution
  int tile_warps = 1;  // warps of a block that hold rows of the state; the others only prepare tokens
  int row_blocks = 1;  // of a head
  int block_tokens = 1;
  HeadMap head_map = HeadMap::kGrouped;
  float scale = 1.0F;
  float norm_eps = 0.0F;
};

// Where a sequence's tokens are: those that are replayed, then its own.
struct StepTokens {
  std::int64_t slot = -1;  // -1: none, and nothing is replayed
  std::int64_t row = 0;    // of x
  std::int64_t begin = 0;  // token of that row
  int replayed = 0;
  std::int64_t own = 0;
  std::int64_t committed = 0;  // that change the states, of count()
  bool valid = false;          // false: the kernel skips the sequence

  __device__ StepTokens(const PrepStep& p, std::int64_t n) {
    const SequenceSpan sequence = find_sequence(p.sequences, n);
    valid = sequence.valid;
    slot = sequence.slot;
    row = sequence.row;
    begin = sequence.begin;
    own = sequence.length;
    if (p.replay_counts != nullptr && slot >= 0) replayed = p.replay_counts[n];
    if (replayed < 0 || replayed > p.most_replayed || (p.drafts && p.replay_x.defined() && own > p.most_replayed + 1)) {
      valid = false;
      if (threadIdx.x == 0) report(p.sequences.fault, kFaultReplays);
    }
    committed = replayed + (p.drafts ? min(own, static_cast<std::int64_t>(1)) : own);
  }
  __device__ std::int64_t count() const { return replayed + own; }
  // Whether the inputs of drafts replace those that are replayed.
  __device__ bool keeps(const PrepStep& p) const { return p.drafts && p.replay_x.defined() && slot >= 0; }
  __device__ bool is_own(std::int64_t t) const { return t >= replayed; }
  // Of the row of x, for one of its own.
  __device__ std::int64_t place(std::int64_t t) const { return begin + t - replayed; }
};

// The inputs of one channel: the last W-1 before the first token, then those of the tokens.
struct Channel {
  const PrepStep& p;
  const StepTokens& tokens;
  std::int64_t channel;  // of x

  __device__ std::uint32_t read_token(std::int64_t t) const {
    return tokens.is_own(t) ? p.x.read(p.x.offset(tokens.row, tokens.place(t)) + channel)
                            : p.replay_x.read(p.replay_x.offset(tokens.slot, t) + channel);
  }
  // Without a slot, inputs before the first token are zero.
  __device__ std::uint32_t read(std::int64_t i) const {
    if (i >= p.taps - 1) return read_token(i - (p.taps - 1));
    return tokens.slot < 0 ? 0 : p.conv_state.read(p.conv_state.offset(tokens.slot, channel) + i);
  }
  __device__ float convert(std::int64_t i, std::uint32_t bits) const {
    return i >= p.taps - 1 ? p.x.convert(bits) : p.conv_state.convert(bits);
  }

  // Convolves `count` tokens from `begin` on to to[t * stride].
  __device__ void prepare(std::int64_t begin, int count, float* to, int stride) const {
    if (count == 0) return;
    if (p.taps == 0) {
#pragma unroll 1
      for (int t = 0; t < count; ++t) to[t * stride] = p.x.convert(read_token(begin + t));
      return;
    }
    // The newest tap and input last, zeros for taps beyond W. window[i] is input i - (kMaxTaps - W).
    const int missing = kMaxTaps - p.taps;
    std::uint32_t bits[2][kMaxTaps];
    const std::int64_t weights = p.conv_weight.offset(channel);
#pragma unroll
    for (int i = 0; i < kMaxTaps; ++i) {
      bits[0][i] = i >= missing ? p.conv_weight.read(weights + i - missing) : 0;
      bits[1][i] = i >= missing ? read(begin + i - missing) : 0;
    }
    float taps[kMaxTaps];
    float window[kMaxTaps];
#pragma unroll
    for (int i = 0; i < kMaxTaps; ++i) {
      taps[i] = p.conv_weight.convert(bits[0][i]);
      window[i] = convert(begin + i - missing, bits[1][i]);
    }
    // A few tokens' inputs are in flight at a time.
    constexpr int kAhead = 4;
#pragma unroll 1
    for (int first = 0; first < count; first += kAhead) {
      std::uint32_t next[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) next[i] = first + i + 1 < count ? read_token(begin + first + i + 1) : 0;
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (first + j >= count) break;
        float sum = 0.0F;
#pragma unroll
        for (int i = 0; i < kMaxTaps; ++i) sum = fmaf(taps[i], window[i], sum);
        to[(first + j) * stride] = sum * sigmoid(sum);
#pragma unroll
        for (int i = 0; i + 1 < kMaxTaps; ++i) window[i] = window[i + 1];
        window[kMaxTaps - 1] = p.x.convert(next[j]);
      }
    }
  }

  // Replaces the channel's state by the last W-1 inputs that are committed. No other block may still read it.
  __device__ void update_state() const {
    const std::int64_t to = p.conv_state.offset(tokens.slot, channel);
    float window[kMaxTaps - 1];
#pragma unroll
    for (int i = 0; i < kMaxTaps - 1; ++i) {
      if (i < p.taps - 1) window[i] = convert(tokens.committed + i, read(tokens.committed + i));
    }
#pragma unroll
    for (int i = 0; i < kMaxTaps - 1; ++i) {
      if (i < p.taps - 1) p.conv_state.store(to + i, window[i]);
    }
  }
};

template <int kK, StateLayout kLayout, bool kCluster>
class PrepStepBlock {
 public:
  __device__ PrepStepBlock(const PrepStep& p, float* shared)
      : p_(p), tokens_(p, group(p) / p.hk), key_head_(group(p) % p.hk) {
    rows_ = p.v_size / p.row_blocks;
    memory_ = TokenMemory(shared, p.block_tokens, kK, rows_);
  }

  __device__ void run() {
    if (!tokens_.valid) return;
    if constexpr (kCluster) {
      const int rank = static_cast<int>(blockIdx.x) % (p_.ratio * p_.row_blocks);
      run_row_block(rank / p_.row_blocks, rank % p_.row_blocks);
    } else {
#pragma unroll 1
      for (int i = 0; i < p_.ratio; ++i) {
#pragma unroll 1
        for (int row_block = 0; row_block < p_.row_blocks; ++row_block) run_row_block(i, row_block);
        if (keeps_outputs()) {
          __syncthreads();
          normalize_outputs(i);
        }
      }
      update_conv_states(0, 1, 0, p_.ratio * p_.v_size);
      if (tokens_.keeps(p_)) keep_drafts(0, 1, 0, p_.ratio * p_.v_size, true);
    }
  }

 private:
  using Tile = StateTile<kK, kLayout>;

  // The key head of a sequence that the block belongs to.
  __device__ static int group(const PrepStep& p) {
    return static_cast<int>(blockIdx.x) / (kCluster ? p.ratio * p.row_blocks : 1);
  }
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int threads() { return static_cast<int>(blockDim.x); }

  // The i-th value head of the key head.
  __device__ int value_head(int i) const {
    return p_.head_map == HeadMap::kTiled ? key_head_ + i * p_.hk : key_head_ * (p_.ratio) + i;
  }
  // The key head's channels 0..2K-1: q, then k.
  __device__ std::int64_t key_channel(int i) const {
    return (i < kK ? 0 : static_cast<std::int64_t>(p_.hk) * kK) + static_cast<std::int64_t>(key_head_) * kK + i % kK;
  }
  __device__ std::int64_t value_channel(int head, int v) const {
    return 2 * static_cast<std::int64_t>(p_.hk) * kK + static_cast<std::int64_t>(head) * p_.v_size + v;
  }
  // The norm needs all rows of a head: a single block keeps the outputs of its row blocks in the workspace.
  __device__ bool keeps_outputs() const { return !kCluster && p_.z.defined() && p_.row_blocks > 1; }

  // Applies all tokens to one row block of the i-th head.
  __device__ void run_row_block(int i, int row_block) {
    head_ = value_head(i);
    first_v_ = row_block * rows_;
    const int warp_v = thread() / kWarpSize * Tile::kWarpV;
    const int v0 = first_v_ + warp_v;
    const bool has_rows = thread() / kWarpSize < p_.tile_warps;
    Tile tile;
    if (has_rows && tokens_.slot >= 0) {
      tile.load(p_.state_in, p_.state_in.offset(tokens_.slot, head_), p_.state_in.strides[2], v0);
    } else {
      tile.clear();
    }
    const auto store_state = [&] {
      if (tokens_.slot < 0) return;
      tile.store(p_.state_out, p_.state_out.offset(tokens_.slot, head_), p_.state_out.strides[2], v0);
    };
    if (has_rows && tokens_.count() == 0) store_state();
    std::int64_t begin = 0;
    do {
      const int count = static_cast<int>(min(static_cast<std::int64_t>(p_.block_tokens), tokens_.count() - begin));
      prepare_tokens(begin, count);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
      if constexpr (kCluster) {
        cluster_arrive();  // has read the states of the key head's channels
        normalize_tokens(count);
        cluster_wait();
        const int members = p_.ratio * p_.row_blocks;
        if (begin == 0) update_conv_states(static_cast<int>(cluster_rank()), members, first_v_, rows_);
      } else
#endif
      {
        normalize_tokens(count);
      }
      __syncthreads();
      if (has_rows) {
        run_tokens<kK>(tile, memory_, count, rows_, warp_v, [&](int t) {
          if (begin + t + 1 == tokens_.committed) store_state();
          if (!p_.snapshots.defined()) return;
          tile.store(p_.snapshots, p_.snapshots.offset(tokens_.row, tokens_.place(begin + t), head_),
                     p_.snapshots.strides[3], v0);
        });
      }
      __syncthreads();
      write_outputs(begin, count, row_block);
      __syncthreads();
      begin += count;
    } while (begin < tokens_.count());
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if constexpr (kCluster) {
      if (!tokens_.keeps(p_)) return;
      cluster_arrive();  // has read what is replayed
      cluster_wait();
      keep_drafts(static_cast<int>(cluster_rank()), p_.ratio * p_.row_blocks, first_v_, rows_, row_block == 0);
    }
#endif
  }

  // Convolves q, k and the row block's v of the tokens into shared memory.
  __device__ void prepare_tokens(std::int64_t begin, int count) {
#pragma unroll 1
    for (int i = thread(); i < 2 * kK + rows_; i += threads()) {
      const bool value = i >= 2 * kK;
      const std::int64_t channel = value ? value_channel(head_, first_v_ + i - 2 * kK) : key_channel(i);
      float* const to = value ? memory_.v + i - 2 * kK : (i < kK ? memory_.q + i : memory_.k + i - kK);
      Channel{p_, tokens_, channel}.prepare(begin, count, to, value ? rows_ : kK);
    }
    const int t = threads() - 1 - thread();
    if (t < count) {
      const std::int64_t token = begin + t;
      const bool is_own = tokens_.is_own(token);
      const GateViews& views = is_own ? p_.gates : p_.replay_gates;
      const Gate gate = views.compute(is_own ? views.read(tokens_.row, tokens_.place(token), head_)
                                             : views.read(tokens_.slot, token, head_));
      memory_.decay[t] = expf(gate.g);
      memory_.beta[t] = gate.beta;
    }
    __syncthreads();
  }

  __device__ void normalize_tokens(int count) {
    constexpr int kPerLane = (kK + kWarpSize - 1) / kWarpSize;
    const int lane = thread() % kWarpSize;
#pragma unroll 1
    for (int t = thread() / kWarpSize; t < count; t += threads() / kWarpSize) {
      float q[kPerLane];
      float k[kPerLane];
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int at = i * kWarpSize + lane;
        q[i] = at < kK ? memory_.q[t * kK + at] : 0.0F;
        k[i] = at < kK ? memory_.k[t * kK + at] : 0.0F;
      }
      normalize_pair(p_.norm, key_head_, kK, p_.scale, q, k);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int at = i * kWarpSize + lane;
        if (at >= kK) continue;
        memory_.q[t * kK + at] = q[i];
        memory_.k[t * kK + at] = k[i];
      }
    }
  }

  // Writes the row block's outputs, which have overwritten its values, with their norm if z is given.
  __device__ void write_outputs(std::int64_t begin, int count, int row_block) {
    const int replayed = static_cast<int>(max(static_cast<std::int64_t>(0), tokens_.replayed - begin));
    if (!keeps_outputs() && p_.z.defined()) sum_squares(count, row_block);
#pragma unroll 1
    for (int i = replayed * rows_ + thread(); i < count * rows_; i += threads()) {
      const std::int64_t place = tokens_.place(begin + i / rows_);
      const int v = first_v_ + i % rows_;
      if (keeps_outputs()) {
        output_row(place, head_)[v] = memory_.v[i];
      } else {
        write_output(place, v, memory_.v[i], p_.z.defined() ? memory_.squares[i / rows_] : 0.0F);
      }
    }
  }

  // `place`: of the token in its row of x.
  __device__ void write_output(std::int64_t place, int v, float value, float squares) {
    if (p_.z.defined()) {
      const float z = p_.z.load(p_.z.offset(tokens_.row, place, head_) + v);
      value *= rsqrtf(squares / static_cast<float>(p_.v_size) + p_.norm_eps) * p_.norm_weight.load(v) * z * sigmoid(z);
    }
    p_.y.store(p_.y.offset(tokens_.row, place, head_) + v, value);
  }

  // squares[t] = the sum of squares of the head's outputs of token t, over all row blocks.
  __device__ void sum_squares(int count, int row_block) {
    const bool shares = kCluster && p_.row_blocks > 1;
    float* const own = shares ? memory_.decay : memory_.squares;  // the tokens have used the decays
#pragma unroll 1
    for (int t = thread() / kWarpSize; t < count; t += threads() / kWarpSize) {
      float sum = 0.0F;
#pragma unroll 1
      for (int v = thread() % kWarpSize; v < rows_; v += kWarpSize) {
        sum = fmaf(memory_.v[t * rows_ + v], memory_.v[t * rows_ + v], sum);
      }
      sum = warp_sum(sum);
      if (thread() % kWarpSize == 0) own[t] = sum;
    }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if (shares) {
      cluster_arrive();
      cluster_wait();
      if (thread() < count) {
        const unsigned first = cluster_rank() - static_cast<unsigned>(row_block);  // of the head's blocks
        float sum = 0.0F;
        for (int s = 0; s < p_.row_blocks; ++s)
          sum += load_from_block(own + thread(), first + static_cast<unsigned>(s));
        memory_.squares[thread()] = sum;
      }
      cluster_arrive();  // no block may leave before its sums have been read
      cluster_wait();
    }
#endif
    __syncthreads();
  }

  __device__ float* output_row(std::int64_t place, int head) const {
    return p_.outputs + ((tokens_.row * p_.sequences.tokens + place) * p_.hv + head) * p_.v_size;
  }

  // Normalizes the i-th head's outputs in the workspace, a warp per token.
  __device__ void normalize_outputs(int i) {
    head_ = value_head(i);
#pragma unroll 1
    for (std::int64_t t = thread() / kWarpSize; t < tokens_.own; t += threads() / kWarpSize) {
      const std::int64_t place = tokens_.begin + t;
      const float* const values = output_row(place, head_);
      float sum = 0.0F;
      for (int v = thread() % kWarpSize; v < p_.v_size; v += kWarpSize) sum = fmaf(values[v], values[v], sum);
      sum = warp_sum(sum);
      for (int v = thread() % kWarpSize; v < p_.v_size; v += kWarpSize) write_output(place, v, values[v], sum);
    }
  }

  // Calls process(channel) for this member's share of the key head's channels of q and k, and for `values` channels of
  // v from first_v on.
  template <class Process>
  __device__ void for_own_channels(int member, int members, int first_v, int values, Process process) {
    const int share = (2 * kK + members - 1) / members;
    const int keys = min(share, max(0, 2 * kK - member * share));
#pragma unroll 1
    for (int i = thread(); i < keys + values; i += threads()) {
      std::int64_t channel = key_channel(member * share + i);
      if (i >= keys) {
        const int at = first_v + i - keys;  // single blocks: through all heads
        channel = kCluster ? value_channel(head_, at) : value_channel(value_head(at / p_.v_size), at % p_.v_size);
      }
      process(channel);
    }
  }

  __device__ void update_conv_states(int member, int members, int first_v, int values) {
    if (p_.taps == 0 || tokens_.slot < 0) return;
    for_own_channels(member, members, first_v, values, [&](std::int64_t channel) {
      Channel{p_, tokens_, channel}.update_state();
    });
  }

  // Keeps the inputs of the drafts where the next call replays them: of the same channels, and the gates of the heads.
  __device__ void keep_drafts(int member, int members, int first_v, int values, bool gates) {
    const int drafts = static_cast<int>(tokens_.own) - 1;
    for_own_channels(member, members, first_v, values, [&](std::int64_t channel) {
#pragma unroll 1
      for (int t = 0; t < drafts; ++t) {
        p_.replay_x.store(p_.replay_x.offset(tokens_.slot, t) + channel,
                          p_.x.load(p_.x.offset(tokens_.row, tokens_.begin + 1 + t) + channel));
      }
    });
    if (!gates) return;
    const int heads = kCluster ? 1 : p_.ratio;
#pragma unroll 1
    for (int i = thread(); i < drafts * heads; i += threads()) {
      const int head = kCluster ? head_ : value_head(i % heads);
      const int t = i / heads;
      const auto keep = [&](const Elements& from, const Elements& to) {
        to.store(to.offset(tokens_.slot, t) + head, from.load(from.offset(tokens_.row, tokens_.begin + 1 + t) + head));
      };
      keep(p_.gates.a, p_.replay_gates.a);
      keep(p_.gates.b, p_.replay_gates.b);
    }
  }

  const PrepStep& p_;
  const StepTokens tokens_;
  TokenMemory memory_{nullptr, 0, 0, 0};
  int key_head_ = 0;
  int head_ = 0;
  int rows_ = 0;
  int first_v_ = 0;
};

template <int kK, StateLayout kLayout, bool kCluster>
__global__ void __launch_bounds__(kMaxStepThreads) prep_step(const __grid_constant__ PrepStep p) {
  extern __shared__ float4 shared[];
  if constexpr (kCluster) pdl_wait();
  PrepStepBlock<kK, kLayout, kCluster>(p, reinterpret_cast<float*>(shared)).run();
  if constexpr (kCluster) pdl_trigger();
}

}  // namespace thalweg::cu
