// The convolution for decode, its state updated in place. Thread: a channel of a sequence.

#include "metal/kernels/gates.h"
#include "metal/kernels/parameters_layers.h"

constant constexpr int kMostUpdateTaps = 8;

[[max_total_threads_per_threadgroup(128)]] kernel void causal_conv1d_update(
    constant ConvParameters& p [[buffer(0)]],
    device const void* x [[buffer(1)]],       // [B,T,C]
    device const void* weight [[buffer(2)]],  // [C,W]
    device const void* bias [[buffer(3)]],    // [C]
    device const int* indices [[buffer(4)]],  // [B]
    device void* state [[buffer(5)]],         // [slots,C,W-1]
    device void* y [[buffer(6)]],             // [B,T,C], may be x
    uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  const int channel = int(group.x) * kMoveThreads + int(thread_index);
  const int n = int(group.y);
  const Slot slot = slot_of(indices, n, p.slots);
  if (channel >= p.channels || !slot.valid) return;
  const int64_t from = slot.index * p.final.row + channel * p.final.token;
  float taps[kMostUpdateTaps];
  float window[kMostUpdateTaps];  // one place higher than in the state: the first token shifts it
  THALWEG_UNROLL
  for (int j = 0; j < kMostUpdateTaps; ++j) {
    taps[j] = j < kTaps ? load(weight, kConvWeightType, channel * p.weight_channel + j) : 0.0f;
    window[j] = j > 0 && j < kTaps && slot.index >= 0 ? load(state, kConvStateType, from + j - 1) : 0.0f;
  }
  const float offset = kHasBias ? load(bias, kConvWeightType, channel) : 0.0f;
  for (int t = 0; t < p.sequences.tokens; ++t) {
    const float newest = load(x, kType, n * p.x.row + t * p.x.token + channel);
    float sum = offset;
    THALWEG_UNROLL
    for (int j = 0; j < kMostUpdateTaps; ++j) {
      if (j + 1 < kTaps) window[j] = window[j + 1 < kMostUpdateTaps ? j + 1 : j];
      if (j == kTaps - 1) window[j] = newest;
      if (j < kTaps) sum += taps[j] * window[j];
    }
    store(y, kOutType, n * p.y.row + t * p.y.token + channel, kActivation ? silu(sum) : sum);
  }
  if (slot.index < 0 || p.sequences.tokens == 0) return;
  THALWEG_UNROLL
  for (int j = 1; j < kMostUpdateTaps; ++j) {
    if (j < kTaps) store(state, kConvStateType, from + j - 1, window[j]);
  }
}
