#pragma once

// Device code that the kernels of the gated delta rule share: sequences, the head map, gates, norms.

#include "cuda/common/tensor_view.h"
#include "cuda/common/warp.h"
#include "cuda/gated_delta/gate.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::cu {

// cu_seqlens and state_indices in device memory, whose values host code has not checked.
struct SequenceTable {
  const std::int32_t* cu_seqlens = nullptr;  // null: every batch row is a sequence
  const std::int32_t* state_indices = nullptr;
  std::int32_t* fault = nullptr;
  std::int64_t tokens = 0;  // of a batch row
  std::int64_t slots = 0;
};

struct SequenceSpan {
  std::int64_t row;
  std::int64_t begin;
  std::int64_t length;
  std::int64_t slot;  // -1: none
  bool valid;         // false: the kernel skips the sequence
};

__device__ inline void report(std::int32_t* fault, DeviceFault bit) {
  if (fault != nullptr) atomicOr(fault, static_cast<std::int32_t>(bit));
}

// All threads of a block get the same result; the first one reports faults.
__device__ inline SequenceSpan find_sequence(const SequenceTable& map, std::int64_t n) {
  SequenceSpan sequence{n, 0, map.tokens, n, true};
  if (map.cu_seqlens != nullptr) {
    const std::int64_t begin = map.cu_seqlens[n];
    const std::int64_t end = map.cu_seqlens[n + 1];
    sequence = {0, begin, end - begin, n, begin >= 0 && begin <= end && end <= map.tokens};
    if (!sequence.valid && threadIdx.x == 0) report(map.fault, kFaultCuSeqlens);
  }
  if (map.state_indices != nullptr) {
    sequence.slot = map.state_indices[n];
    if (sequence.slot < -1 || sequence.slot >= map.slots) {
      sequence.valid = false;
      if (threadIdx.x == 0) report(map.fault, kFaultStateIndices);
    }
  }
  return sequence;
}

// The same without cu_seqlens, in fewer bytes.
struct SlotTable {
  const std::int32_t* state_indices = nullptr;
  std::int32_t* fault = nullptr;
  std::int32_t slots = 0;
};

// Finds the slot of sequence n, -1 for none. Returns false if the kernel skips the sequence.
__device__ inline bool find_slot(const SlotTable& table, int n, int& slot) {
  slot = n;
  if (table.state_indices == nullptr) return true;
  slot = table.state_indices[n];
  const bool valid = slot >= -1 && slot < table.slots;
  if (!valid && threadIdx.x == 0) report(table.fault, kFaultStateIndices);
  return valid;
}

__device__ inline int key_head(HeadMap map, int value_head, int hk, int hv) {
  return map == HeadMap::kTiled ? value_head % hk : value_head / (hv / hk);
}

__device__ inline float sigmoid(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0F + expf(-x)));  // of 1 to infinity
  return result;
}

// GateInputs on the device, read and converted in two steps like AnyView.
struct GateBits {
  std::uint32_t a, b, a_log, dt_bias;
};
template <class Rows, class Vector>
struct BasicGateViews {
  Rows a, b;
  Vector a_log, dt_bias;

  __device__ GateBits read(std::int64_t row, std::int64_t token, int head) const {
    return {a.read(a.offset(row, token) + head), b.read(b.offset(row, token) + head), a_log.read(head),
            dt_bias.read(head)};
  }
  __device__ Gate compute(const GateBits& raw) const {
    return compute_gate(a.convert(raw.a), b.convert(raw.b), a_log.convert(raw.a_log), dt_bias.convert(raw.dt_bias));
  }
};
using GateViews = BasicGateViews<Elements, Elements>;
using CompactGateViews = BasicGateViews<Compact<2>, Compact<1>>;

// The norm of q and k.
template <class Weights>
struct BasicNormOptions {
  QkNorm norm = QkNorm::kNone;
  float eps = 0.0F;
  Weights q_weight;  // [HK,K], for QkNorm::kRms
  Weights k_weight;

  // The factor of a row; `squares` is its sum of squares.
  __device__ float factor(float squares, int k) const {
    if (norm == QkNorm::kNone) return 1.0F;
    return rsqrtf((norm == QkNorm::kRms ? squares / static_cast<float>(k) : squares) + eps);
  }
};
using NormOptions = BasicNormOptions<Elements>;
using CompactNormOptions = BasicNormOptions<Compact<1>>;

// Normalizes q and k of one token in place and scales q, by a warp. Element i of a lane is i * 32 + lane of the row, or
// 0 if that is not below K.
template <int kPerLane>
__device__ inline void normalize_pair(const NormOptions& options, int key_head, int k_size, float scale,
                                      float (&q)[kPerLane], float (&k)[kPerLane]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float q_squares = 0.0F;
  float k_squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    q_squares = fmaf(q[i], q[i], q_squares);
    k_squares = fmaf(k[i], k[i], k_squares);
  }
  const float q_factor = scale * options.factor(warp_sum(q_squares), k_size);
  const float k_factor = options.factor(warp_sum(k_squares), k_size);
  if (options.norm == QkNorm::kRms) {
    const std::int64_t q_row = options.q_weight.offset(key_head);
    const std::int64_t k_row = options.k_weight.offset(key_head);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int at = min(i * kWarpSize + lane, k_size - 1);
      q[i] *= options.q_weight.load(q_row + at);
      k[i] *= options.k_weight.load(k_row + at);
    }
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    q[i] *= q_factor;
    k[i] *= k_factor;
  }
}

}  // namespace thalweg::cu
