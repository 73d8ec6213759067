// Causal depthwise convolution. The outputs of all tokens in parallel, then, in a launch of its own because it may
// replace what the first tokens read, the state.

#include "metal/kernels/gates.h"
#include "metal/kernels/parameters_layers.h"

constant constexpr int kMostTaps = 8;

// The input of token `index` of a sequence that begins at `begin`; below 0 it comes from the state.
inline float conv_input(device const void* x, device const void* initial, constant ConvParameters& p, int row,
                        int begin, int index, int channel, int slot) {
  if (index >= 0) return load(x, kType, row * p.x.row + (begin + index) * p.x.token + channel);
  if (!kHasInitial || slot < 0) return 0.0f;
  return load(initial, kConvStateType, slot * p.initial.row + channel * p.initial.token + index + kTaps - 1);
}

// Thread: a channel and eight tokens of a row.
[[max_total_threads_per_threadgroup(128)]] kernel void causal_conv1d(constant ConvParameters& p [[buffer(0)]],
                                                                     device const void* x [[buffer(1)]],  // [B,T,C]
                                                                     device const void* weight [[buffer(2)]],  // [C,W]
                                                                     device const void* bias [[buffer(3)]],    // [C]
                                                                     device const void* initial
                                                                     [[buffer(4)]],  // [slots,C,W-1]
                                                                     device const int* indices [[buffer(5)]],  // [N]
                                                                     device const int* bounds [[buffer(6)]],   // [N+1]
                                                                     device void* y [[buffer(7)]],  // [B,T,C]
                                                                     uint3 group [[threadgroup_position_in_grid]],
                                                                     uint thread_index
                                                                     [[thread_index_in_threadgroup]]) {
  const int channel = int(group.x) * kMoveThreads + int(thread_index);
  if (channel >= p.channels) return;
  const int row = int(group.z);
  float taps[kMostTaps];
  THALWEG_UNROLL
  for (int j = 0; j < kMostTaps; ++j) {
    taps[j] = j < kTaps ? load(weight, kConvWeightType, channel * p.weight_channel + j) : 0.0f;
  }
  const float offset = kHasBias ? load(bias, kConvWeightType, channel) : 0.0f;
  float window[kMostTaps];  // the last inputs, the newest at W - 1
  int n = kRagged ? -1 : row;
  int begin = 0;
  int end = kRagged ? 0 : p.sequences.tokens;
  bool fresh = true;  // the window holds nothing yet
  Slot slot = slot_of(indices, max(n, 0), p.slots);
  const int last = min((int(group.y) + 1) * kConvTokens, p.sequences.tokens);
  for (int token = int(group.y) * kConvTokens; token < last; ++token) {
    while (kRagged && token >= end && n + 1 < p.sequences.count) {
      ++n;
      begin = bounds[n];
      end = begin + sequence_length(p.sequences, bounds, n);
      slot = slot_of(indices, n, p.slots);
      fresh = true;
    }
    if (token < begin || token >= end || !slot.valid) continue;
    THALWEG_UNROLL
    for (int j = 0; j < kMostTaps; ++j) {
      if (j + 1 < kTaps) {
        window[j] = fresh ? conv_input(x, initial, p, row, begin, token - begin - kTaps + 1 + j, channel, slot.index)
                          : window[j + 1 < kMostTaps ? j + 1 : j];
      }
    }
    fresh = false;
    const float newest = load(x, kType, row * p.x.row + token * p.x.token + channel);
    float sum = offset;
    THALWEG_UNROLL
    for (int j = 0; j < kMostTaps; ++j) {
      if (j == kTaps - 1) window[j] = newest;
      if (j < kTaps) sum += taps[j] * window[j];
    }
    store(y, kOutType, row * p.y.row + token * p.y.token + channel, kActivation ? silu(sum) : sum);
  }
}

// Thread: a channel of a sequence.
[[max_total_threads_per_threadgroup(128)]] kernel void causal_conv1d_state(
    constant ConvParameters& p [[buffer(0)]],
    device const void* x [[buffer(1)]],        // [B,T,C]
    device const void* initial [[buffer(2)]],  // [slots,C,W-1]
    device const int* indices [[buffer(3)]],   // [N]
    device const int* bounds [[buffer(4)]],    // [N+1]
    device void* final [[buffer(5)]],          // [slots,C,W-1], may be initial
    uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  const int channel = int(group.x) * kMoveThreads + int(thread_index);
  const int n = int(group.y);
  const Slot slot = slot_of(indices, n, p.slots);
  if (channel >= p.channels || !slot.valid || slot.index < 0 || bounds_are_wrong(p.sequences, bounds, n)) return;
  const int length = sequence_length(p.sequences, bounds, n);
  const int begin = sequence_begin(bounds, n);
  // Ascending: what comes from the state lies behind what is written.
  for (int j = 0; j + 1 < kTaps; ++j) {
    const float value = conv_input(x, initial, p, sequence_row(n), begin, length - kTaps + 1 + j, channel, slot.index);
    store(final, kConvStateType, slot.index * p.final.row + channel * p.final.token + j, value);
  }
}
