// Both causal convolutions. A task owns a block of channels, kept in f32 with the channels next to each other: the last
// W inputs in a ring of rows, the taps turned from [C,W] to [W,C].

#include <algorithm>
#include <array>

#include "core/sequences.h"
#include "core/threads.h"
#include "cpu/nn.h"
#include "cpu/nn_vector.h"
#include "cpu/scratch.h"
#include "cpu/tuning.h"
#include "cpu/vector.h"

namespace thalweg::cpu {
namespace {

constexpr std::int64_t kMaxTaps = 8;
constexpr std::int64_t kTokens = 64;  // of one task; more than a window, so that only a first task looks at the state
constexpr std::int64_t kPrefillChannels = 512;
constexpr std::int64_t kUpdateChannels = 128;

// Scratch of one task over at most `width` channels.
struct Block {
  static std::int64_t floats(std::int64_t width, std::int64_t taps) {
    return arena_floats(taps * width, width, taps * width, width, taps * width);
  }

  Block(const Workspace& workspace, int worker, std::int64_t width_, std::int64_t taps_) : taps(taps_), width(width_) {
    Arena scratch = worker_arena(workspace, floats(width, taps), worker);
    weight = scratch.take<float>(taps * width);
    bias = scratch.take<float>(width);
    ring = scratch.take<float>(taps * width);
    result = scratch.take<float>(width);
    packed = scratch.take<float>(taps * width);
  }

  float* ring_row(std::int64_t i) const { return ring + i % taps * width; }

  std::int64_t taps;
  std::int64_t width;
  std::int64_t first = 0;  // channel
  std::int64_t count = 0;  // channels
  float* weight;           // [W,width]
  float* bias;             // [width]
  float* ring;             // [W,width]: input i of a sequence, counted from its window on, lies in row i % W
  float* result;           // [width]
  float* packed;           // [count,W], channel by channel as states and weights lie in memory
};

// Calls body with the number of columns, 1..8, as a constant: turning narrow rows is all about unrolled loops.
template <std::int64_t kColumns = 1, class Body>
void with_columns(std::int64_t columns, Body body) {
  if (columns == kColumns) return body.template operator()<kColumns>();
  if constexpr (kColumns < kMaxTaps) with_columns<kColumns + 1>(columns, body);
}

// Rows first..first+count-1 of [C,columns] at `rows`, turned: to[j*to_row + i].
void gather(const Block& block, DType dtype, const void* rows, std::int64_t row_stride, std::int64_t columns, float* to,
            std::int64_t to_row) {
  const VectorOps& vec = vector_ops();
  const void* begin = element(dtype, rows, block.first * row_stride);
  if (row_stride == columns) {
    vec.load(dtype, begin, block.count * columns, block.packed);
  } else {
    for (std::int64_t i = 0; i < block.count; ++i) {
      vec.load(dtype, element(dtype, begin, i * row_stride), columns, block.packed + i * columns);
    }
  }
  with_columns(columns, [&]<std::int64_t kColumns>() {
    for (std::int64_t i = 0; i < block.count; ++i) {
      for (std::int64_t j = 0; j < kColumns; ++j) to[j * to_row + i] = block.packed[i * kColumns + j];
    }
  });
}

// The other way: the window of W-1 ring rows from input `begin` on, into rows of [C,W-1].
void scatter(const Block& block, std::int64_t begin, DType dtype, void* rows, std::int64_t row_stride) {
  const VectorOps& vec = vector_ops();
  const std::int64_t columns = block.taps - 1;
  with_columns(columns, [&]<std::int64_t kColumns>() {
    std::array<const float*, kMaxTaps> from{};
    for (std::int64_t j = 0; j < kColumns; ++j) from[static_cast<std::size_t>(j)] = block.ring_row(begin + j);
    for (std::int64_t i = 0; i < block.count; ++i) {
      for (std::int64_t j = 0; j < kColumns; ++j) {
        block.packed[i * kColumns + j] = from[static_cast<std::size_t>(j)][i];
      }
    }
  });
  void* to = element(dtype, rows, block.first * row_stride);
  if (row_stride == columns) {
    vec.store(dtype, block.packed, block.count * columns, to);
    return;
  }
  for (std::int64_t i = 0; i < block.count; ++i) {
    vec.store(dtype, block.packed + i * columns, columns, element(dtype, to, i * row_stride));
  }
}

void select_channels(Block& block, std::int64_t number, std::int64_t channels) {
  block.first = number * block.width;
  block.count = std::min(block.width, channels - block.first);
}

template <class Args>
void load_taps(const Args& args, const Block& block) {
  gather(block, args.weight.dtype, args.weight.data, args.weight.stride(0), block.taps, block.weight, block.width);
  if (args.bias.defined()) {
    vector_ops().load(args.bias.dtype, element(args.bias.dtype, args.bias.data, block.first), block.count, block.bias);
  } else {
    std::fill_n(block.bias, block.count, 0.0F);
  }
}

// The state of `slot` as the first W-1 ring rows; zero without one.
void load_state(const Block& block, const ConstTensor& pool, std::int64_t slot) {
  if (!pool.defined() || slot < 0) {
    std::fill_n(block.ring, (block.taps - 1) * block.width, 0.0F);
    return;
  }
  gather(block, pool.dtype, pool.row(slot), pool.stride(1), block.taps - 1, block.ring, block.width);
}

void load_input(const Block& block, const ConstTensor& x, std::int64_t row, std::int64_t token, float* to) {
  vector_ops().load(x.dtype, element(x.dtype, x.row(row, token), block.first), block.count, to);
}

// Tokens begin..begin+length-1 of a batch row, whose window is in the ring already.
template <class Args>
void convolve_tokens(const Args& args, const Block& block, std::int64_t row, std::int64_t begin, std::int64_t length) {
  const bool silu = args.activation == Activation::kSilu;
  std::array<const float*, kMaxTaps> inputs{};
  for (std::int64_t t = 0; t < length; ++t) {
    load_input(block, args.x, row, begin + t, block.ring_row(t + block.taps - 1));
    for (std::int64_t j = 0; j < block.taps; ++j) inputs[static_cast<std::size_t>(j)] = block.ring_row(t + j);
    nn_vector_ops().convolve(inputs.data(), block.taps, block.weight, block.width, block.bias, silu, block.count,
                             block.result);
    vector_ops().store(args.y.dtype, block.result, block.count,
                       element(args.y.dtype, args.y.row(row, begin + t), block.first));
  }
}

// ---- causal_conv1d

std::size_t prefill_workspace(const CausalConv1dArgs& args, const Stream& stream) {
  return worker_bytes(Block::floats(kPrefillChannels, args.weight.dim(1)), stream);
}

void run_prefill(const CausalConv1dArgs& args, Workspace workspace, const Stream& stream) {
  const std::int64_t channels = args.x.dim(2);
  const std::int64_t taps = args.weight.dim(1);
  const std::int64_t blocks = (channels + kPrefillChannels - 1) / kPrefillChannels;
  const Sequences sequences(args.cu_seqlens, args.x.dim(0), args.x.dim(1));

  const double row_ns = static_cast<double>(std::min(kPrefillChannels, channels)) * tuning::kExponentialNs;
  const double chunk_ns = static_cast<double>(std::min(kTokens, args.x.dim(1)) + taps) * row_ns;
  parallel_for(stream, sequences.total_chunks(kTokens) * blocks, chunk_ns, [&](std::int64_t task, int worker) {
    Block block(workspace, worker, kPrefillChannels, taps);
    select_channels(block, task % blocks, channels);
    const Chunk chunk = sequences.chunk(task / blocks, kTokens);
    load_taps(args, block);
    if (chunk.begin == sequences.begin(chunk.sequence)) {
      load_state(block, args.initial_state, state_slot(args.state_indices, chunk.sequence));
    } else {
      for (std::int64_t j = 0; j + 1 < taps; ++j) {
        load_input(block, args.x, chunk.row, chunk.begin - (taps - 1) + j, block.ring_row(j));
      }
    }
    convolve_tokens(args, block, chunk.row, chunk.begin, chunk.length);
  });

  // Only when all have read the old states may the new ones take their place.
  if (!args.final_state.defined()) return;
  parallel_for(stream, sequences.count() * blocks, static_cast<double>(taps) * row_ns,
               [&](std::int64_t task, int worker) {
                 Block block(workspace, worker, kPrefillChannels, taps);
                 select_channels(block, task % blocks, channels);
                 const std::int64_t n = task / blocks;
                 const std::int64_t slot = state_slot(args.state_indices, n);
                 if (slot < 0) return;
                 const std::int64_t length = sequences.length(n);
                 if (length < taps - 1) load_state(block, args.initial_state, slot);
                 for (std::int64_t i = std::max<std::int64_t>(0, length - (taps - 1)); i < length; ++i) {
                   load_input(block, args.x, sequences.row(n), sequences.begin(n) + i, block.ring_row(i + taps - 1));
                 }
                 scatter(block, length, args.final_state.dtype, args.final_state.row(slot), args.final_state.stride(1));
               });
}

constexpr Kernel<CausalConv1dArgs> kPrefill[] = {
    {"channels", always_supported<CausalConv1dArgs>, prefill_workspace, run_prefill}};

// ---- causal_conv1d_update

std::size_t update_workspace(const CausalConv1dUpdateArgs& args, const Stream& stream) {
  return worker_bytes(Block::floats(kUpdateChannels, args.weight.dim(1)), stream);
}

void run_update(const CausalConv1dUpdateArgs& args, Workspace workspace, const Stream& stream) {
  const std::int64_t channels = args.x.dim(2);
  const std::int64_t tokens = args.x.dim(1);
  const std::int64_t blocks = (channels + kUpdateChannels - 1) / kUpdateChannels;
  // All sequences of a block of channels in one task: they share the taps.
  const double row_ns = static_cast<double>(std::min(kUpdateChannels, channels)) * tuning::kExponentialNs;
  const double task_ns = static_cast<double>(args.x.dim(0) * (tokens + 2 * args.weight.dim(1))) * row_ns;
  parallel_for(stream, blocks, task_ns, [&](std::int64_t task, int worker) {
    Block block(workspace, worker, kUpdateChannels, args.weight.dim(1));
    select_channels(block, task, channels);
    load_taps(args, block);
    for (std::int64_t b = 0; b < args.x.dim(0); ++b) {
      const std::int64_t slot = state_slot(args.state_indices, b);
      load_state(block, args.conv_state, slot);
      convolve_tokens(args, block, b, 0, tokens);
      if (slot < 0) continue;
      scatter(block, tokens, args.conv_state.dtype, args.conv_state.row(slot), args.conv_state.stride(1));
    }
  });
}

constexpr Kernel<CausalConv1dUpdateArgs> kUpdate[] = {
    {"channels", always_supported<CausalConv1dUpdateArgs>, update_workspace, run_update}};

}  // namespace

KernelList<CausalConv1dArgs> causal_conv1d_kernels() { return kPrefill; }
KernelList<CausalConv1dUpdateArgs> causal_conv1d_update_kernels() { return kUpdate; }

}  // namespace thalweg::cpu
