// causal_conv1d and causal_conv1d_update. Neighboring threads have neighboring channels and iterate over tokens, with
// the window of the last W-1 inputs in registers. Sums run from the oldest tap to the newest wherever a sequence is
// split, so that prefill and decode return the same bits.

#include <algorithm>
#include <cstdint>

#include "cuda/common/packed.h"
#include "cuda/common/pdl.h"
#include "cuda/gated_delta/chunk_table.h"
#include "cuda/gated_delta/rule.h"
#include "cuda/gated_delta/stages.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/tuning.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxTaps = 8;
constexpr int kUsualTaps = 4;  // has its own kernels, without tests for absent taps

struct Filter {
  Elements weight;  // [C,W]
  Elements bias;    // [C]
  int taps = 0;
  bool silu = false;
};

// The taps of kVec channels from `channel` on. If W is below kTaps, the first taps are absent instead of zero: zero
// times an infinite input outside the window is NaN.
template <int kTaps, int kVec>
struct Taps {
  float weight[kTaps][kVec];
  float bias[kVec];
  int absent;
  bool silu;

  __device__ Taps(const Filter& filter, std::int64_t channel)
      : absent(kTaps == kUsualTaps ? 0 : kTaps - filter.taps), silu(filter.silu) {
    if (kTaps == 4 && filter.weight.fours) {
      with_type(filter.weight.dtype, [&]<class T>(T) {
        const T* rows = static_cast<const T*>(filter.weight.data);
        Packed<T, 4> raw[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) raw[i] = Packed<T, 4>::read(rows + filter.weight.offset(channel + i));
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          float row[4];
          raw[i].unpack(row);
#pragma unroll
          for (int j = 0; j < kTaps && j < 4; ++j) weight[j][i] = row[j];
        }
      });
    } else {
      std::uint32_t raw[kTaps][kVec];
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const std::int64_t row = filter.weight.offset(channel + i);
#pragma unroll
        for (int j = 0; j < kTaps; ++j) raw[j][i] = has(j) ? filter.weight.read(row + j - absent) : 0;
      }
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) weight[j][i] = filter.weight.convert(raw[j][i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i) bias[i] = filter.bias.defined() ? filter.bias.load(channel + i) : 0.0F;
  }

  // Kernels with kUsualTaps are launched for W = kUsualTaps only.
  __device__ bool has(int j) const { return kTaps == kUsualTaps || j >= absent; }

  // Output of the token whose window begins at inputs[first].
  template <int kInputs>
  __device__ float output(const float (&inputs)[kInputs][kVec], int first, int i) const {
    float sum = bias[i];
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      if (has(j)) sum = fmaf(weight[j][i], inputs[first + j][i], sum);
    }
    return silu ? sum * sigmoid(sum) : sum;
  }
};

// ---- causal_conv1d

struct Conv {
  ChunkTable table;
  Elements x;              // [B,T,C]
  Elements y;              // [B,T,C]
  Elements initial_state;  // [slots,C,W-1]
  Elements final_state;
  SequenceTable sequences;
  Filter filter;
  std::int64_t channels = 0;
};

template <class T>
__device__ inline void store_outputs(T* to, const float (&from)[4]) {
  store_four(to, {from[0], from[1], from[2], from[3]});
}
template <class T>
__device__ inline void store_outputs(T* to, const float (&from)[1]) {
  *to = from_f32<T>(from[0]);
}

// A thread has kVec channels of a run of tokens.
template <class T, int kVec, int kTaps>
__global__ void __launch_bounds__(kThreads) conv_kernel(const __grid_constant__ Conv p) {
  constexpr int kAhead = 4;  // tokens whose loads are in flight together
  pdl_trigger_and_wait();
  const ChunkSpan run = find_chunk(p.table, blockIdx.x);
  if (run.length == 0) return;
  const SequenceSpan sequence = find_sequence(p.sequences, run.sequence);
  const std::int64_t channel = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kVec;
  if (!sequence.valid || channel >= p.channels) return;
  const T* x = static_cast<const T*>(p.x.data) + p.x.offset(run.row, run.begin) + channel;
  T* y = static_cast<T*>(p.y.data) + p.y.offset(run.row, run.begin) + channel;
  const std::int64_t x_step = p.x.strides[1];
  const std::int64_t y_step = p.y.strides[1];
  const int absent = kTaps == kUsualTaps ? 0 : kTaps - p.filter.taps;

  using Raw = Packed<T, kVec>;
  Raw next[kAhead] = {};
  const auto fetch = [&](int begin) {
#pragma unroll
    for (int t = 0; t < kAhead; ++t) {
      if (begin + t < run.length) next[t] = Raw::read(x + (begin + t) * x_step);
    }
  };
  Raw before[kTaps - 1] = {};
#pragma unroll
  for (int j = 0; j < kTaps - 1; ++j) {
    const int back = kTaps - 1 - j;
    if (j >= absent && run.begin - back >= sequence.begin) before[j] = Raw::read(x - back * x_step);
  }
  fetch(0);
  const Taps<kTaps, kVec> taps(p.filter, channel);
  float inputs[kTaps - 1 + kAhead][kVec];
#pragma unroll
  for (int j = 0; j < kTaps - 1; ++j) {
    before[j].unpack(inputs[j]);
    const std::int64_t token = run.begin - sequence.begin - (kTaps - 1 - j);  // in the sequence
    if (j < absent || token >= 0 || !p.initial_state.defined() || sequence.slot < 0) continue;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      inputs[j][i] =
          p.initial_state.load(p.initial_state.offset(sequence.slot, channel + i) + p.filter.taps - 1 + token);
    }
  }
  for (int begin = 0; begin < run.length; begin += kAhead) {
#pragma unroll
    for (int t = 0; t < kAhead; ++t) next[t].unpack(inputs[kTaps - 1 + t]);
    fetch(begin + kAhead);
#pragma unroll
    for (int t = 0; t < kAhead; ++t) {
      if (begin + t >= run.length) break;
      float outputs[kVec];
#pragma unroll
      for (int i = 0; i < kVec; ++i) outputs[i] = taps.output(inputs, t, i);
      store_outputs(y + (begin + t) * y_step, outputs);
    }
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) inputs[j][i] = inputs[j + kAhead][i];
    }
  }
}

// Stores the last W-1 inputs, a thread for each channel of a sequence. A second launch, since no thread may replace a
// state that another one still reads.
__global__ void __launch_bounds__(kThreads) final_state_kernel(const __grid_constant__ Conv p) {
  pdl_trigger_and_wait();
  const SequenceSpan sequence = find_sequence(p.sequences, blockIdx.x);
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (!sequence.valid || sequence.slot < 0 || channel >= p.channels) return;
  const int window = p.filter.taps - 1;
  float inputs[kMaxTaps - 1] = {};
#pragma unroll
  for (int j = 0; j < kMaxTaps - 1; ++j) {
    if (j >= window) break;
    const std::int64_t token = sequence.length - window + j;
    if (token >= 0) {
      inputs[j] = p.x.load(p.x.offset(sequence.row, sequence.begin + token) + channel);
    } else if (p.initial_state.defined()) {
      inputs[j] = p.initial_state.load(p.initial_state.offset(sequence.slot, channel) + window + token);
    }
  }
#pragma unroll
  for (int j = 0; j < kMaxTaps - 1; ++j) {
    if (j < window) p.final_state.store(p.final_state.offset(sequence.slot, channel) + j, inputs[j]);
  }
}

Filter filter_of(const ConstTensor& weight, const ConstTensor& bias, Activation activation) {
  return {elements(weight), elements(bias), static_cast<int>(weight.dim(1)), activation == Activation::kSilu};
}

bool by_fours(const CausalConv1dArgs& args) {
  return args.x.dim(2) % 4 == 0 && elements(args.x).fours && elements(args.y).fours;
}

// Tokens of a thread: as many as leave each multiprocessor enough threads.
int run_tokens(const CausalConv1dArgs& args, int multiprocessors) {
  using namespace tuning::gated_delta;
  const std::int64_t columns = args.x.dim(0) * args.x.dim(2) / (by_fours(args) ? 4 : 1);
  const std::int64_t threads = std::int64_t{kConvThreadsPerMultiprocessor} * multiprocessors;
  int tokens = kConvLongestRun;
  while (tokens > kConvShortestRun && columns * args.x.dim(1) < threads * tokens) tokens /= 2;
  return tokens;
}

unsigned channel_blocks(std::int64_t channels, int of_a_thread) {
  const std::int64_t of_a_block = std::int64_t{kThreads} * of_a_thread;
  return static_cast<unsigned>((channels + of_a_block - 1) / of_a_block);
}

using ConvKernel = void (*)(Conv);

ConvKernel conv_kernel_of(const CausalConv1dArgs& args) {
  ConvKernel kernel = nullptr;
  with_type(args.x.dtype, [&]<class T>(T) {
    const bool usual = args.weight.dim(1) == kUsualTaps;
    if (by_fours(args)) {
      kernel = usual ? conv_kernel<T, 4, kUsualTaps> : conv_kernel<T, 4, kMaxTaps>;
    } else {
      kernel = usual ? conv_kernel<T, 1, kUsualTaps> : conv_kernel<T, 1, kMaxTaps>;
    }
  });
  return kernel;
}

std::string fits_channels(std::int64_t channels) {
  constexpr std::int64_t kMaxBlocks = 65535;
  return channels <= kMaxBlocks * kThreads ? "" : "needs at most 2^23 channels";
}

std::string conv_supports(const CausalConv1dArgs& args, const Stream&) {
  const ChunkTable table = chunk_table(args.cu_seqlens, args.x, tuning::gated_delta::kConvShortestRun);
  const std::string grid = fits_grid(std::max(max_chunks(table), table.sequences));
  return grid.empty() ? fits_channels(args.x.dim(2)) : grid;
}

void run_conv(const CausalConv1dArgs& args, Workspace, const Stream& stream) {
  const DeviceProperties& device = properties(stream.device.index);
  Conv p;
  p.table = chunk_table(args.cu_seqlens, args.x, run_tokens(args, device.multiprocessors));
  p.x = elements(args.x);
  p.y = elements(args.y);
  p.initial_state = elements(args.initial_state);
  p.final_state = elements(args.final_state);
  const ConstTensor pool = args.initial_state.defined() ? args.initial_state : ConstTensor(args.final_state);
  p.sequences = {p.table.cu_seqlens, integers(args.state_indices), nullptr, p.table.tokens,
                 pool.defined() ? pool.dim(0) : 0};
  p.filter = filter_of(args.weight, args.bias, args.activation);
  p.channels = args.x.dim(2);
  if (p.channels == 0) return;
  const CurrentDevice current(stream, args.kName);
  if (const std::int64_t runs = max_chunks(p.table); runs > 0) {
    const dim3 grid(static_cast<unsigned>(runs), channel_blocks(p.channels, by_fours(args) ? 4 : 1));
    pdl_launch(conv_kernel_of(args), grid, dim3(kThreads), 0, device, native(stream), args.kName, p);
  }
  if (args.final_state.defined() && p.table.sequences > 0) {
    const dim3 grid(static_cast<unsigned>(p.table.sequences), channel_blocks(p.channels, 1));
    pdl_launch(final_state_kernel, grid, dim3(kThreads), 0, device, native(stream), args.kName, p);
  }
}

constexpr Kernel<CausalConv1dArgs> kConv[] = {{"channels", conv_supports, no_workspace<CausalConv1dArgs>, run_conv}};

// ---- causal_conv1d_update

struct ConvUpdate {
  Elements x;  // [B,T,C]
  Elements y;
  Elements state;  // [slots,C,W-1]
  SequenceTable sequences;
  Filter filter;
  std::int64_t channels = 0;
};

// A thread has one channel of a sequence.
template <int kTaps>
__global__ void __launch_bounds__(kThreads) update_kernel(const __grid_constant__ ConvUpdate p) {
  pdl_trigger_and_wait();
  const SequenceSpan sequence = find_sequence(p.sequences, blockIdx.x);
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (!sequence.valid || channel >= p.channels) return;
  const Taps<kTaps, 1> taps(p.filter, channel);
  const bool has_state = sequence.slot >= 0;
  const std::int64_t state = has_state ? p.state.offset(sequence.slot, channel) : 0;
  float inputs[kTaps][1];  // the window, then the newest input
#pragma unroll
  for (int j = 0; j < kTaps - 1; ++j) {
    inputs[j][0] = has_state && taps.has(j) ? p.state.load(state + j - taps.absent) : 0.0F;
  }
  for (std::int64_t t = 0; t < sequence.length; ++t) {
    inputs[kTaps - 1][0] = p.x.load(p.x.offset(sequence.row, t) + channel);
    p.y.store(p.y.offset(sequence.row, t) + channel, taps.output(inputs, 0, 0));
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) inputs[j][0] = inputs[j + 1][0];
  }
  if (!has_state) return;
#pragma unroll
  for (int j = 0; j < kTaps - 1; ++j) {
    if (taps.has(j)) p.state.store(state + j - taps.absent, inputs[j][0]);
  }
}

std::string update_supports(const CausalConv1dUpdateArgs& args, const Stream&) {
  const std::string grid = fits_grid(args.x.dim(0));
  return grid.empty() ? fits_channels(args.x.dim(2)) : grid;
}

void run_update(const CausalConv1dUpdateArgs& args, Workspace, const Stream& stream) {
  ConvUpdate p;
  p.x = elements(args.x);
  p.y = elements(args.y);
  p.state = elements(args.conv_state);
  p.sequences = {nullptr, integers(args.state_indices), nullptr, args.x.dim(1), args.conv_state.dim(0)};
  p.filter = filter_of(args.weight, args.bias, args.activation);
  p.channels = args.x.dim(2);
  if (args.x.dim(0) == 0 || p.channels == 0) return;
  const CurrentDevice current(stream, args.kName);
  const dim3 grid(static_cast<unsigned>(args.x.dim(0)), channel_blocks(p.channels, 1));
  pdl_launch(p.filter.taps == kUsualTaps ? update_kernel<kUsualTaps> : update_kernel<kMaxTaps>, grid, dim3(kThreads), 0,
             properties(stream.device.index), native(stream), args.kName, p);
}

constexpr Kernel<CausalConv1dUpdateArgs> kUpdate[] = {
    {"channels", update_supports, no_workspace<CausalConv1dUpdateArgs>, run_update}};

}  // namespace

KernelList<CausalConv1dArgs> causal_conv1d_kernels() { return kConv; }
KernelList<CausalConv1dUpdateArgs> causal_conv1d_update_kernels() { return kUpdate; }

}  // namespace thalweg::cu
