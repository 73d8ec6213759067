#pragma once

// Shared by the launches of the gated delta rule's operations.

#include <algorithm>
#include <cmath>

#include "metal/kernels/parameters.h"
#include "metal/launch.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::metal {

// As in kernels/common.h.
inline constexpr std::uint32_t kThreadsOfKernel = 128;
inline constexpr std::uint32_t kSimdgroupsOfKernel = 4;

// Strides of [B,T,H,..], all zero for an absent tensor.
inline View view_of(const ConstTensor& tensor) { return {tensor.stride(0), tensor.stride(1), tensor.stride(2)}; }

// Strides of [slots,HV,V,K], or of [slots,HV,K,V] if !vk.
inline StateView state_view(const ConstTensor& tensor, bool vk) {
  return {tensor.stride(0), 0, tensor.stride(1), tensor.stride(vk ? 2 : 3), tensor.stride(vk ? 3 : 2)};
}
// Strides of [B,NC,HV,V,K] or [B,T,HV,V,K], or with K before V if !vk.
inline StateView chunk_states_view(const ConstTensor& tensor, bool vk) {
  return {tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(vk ? 3 : 4), tensor.stride(vk ? 4 : 3)};
}

inline float scale_of(const std::optional<float>& scale, std::int64_t k) {
  return scale.value_or(1.0F / std::sqrt(static_cast<float>(k)));
}

// Adds buffers g or a, beta or b, a_log and dt_bias, and the constants kRawGates, kGateType, kALogType and kBiasType.
void add_gates(Launch& launch, const ConstTensor& g, const ConstTensor& beta, const GateInputs& gates);

// `like` is a tensor [B,T,..].
inline SequencesOf sequences_of(const ConstTensor& cu_seqlens, const ConstTensor& like) {
  const std::int64_t count = cu_seqlens.defined() ? cu_seqlens.dim(0) - 1 : like.dim(0);
  return {static_cast<std::int32_t>(count), static_cast<std::int32_t>(like.dim(1))};
}

// Number of chunks of the batch; with cu_seqlens, which only the device reads, the most that N sequences can have.
inline std::uint32_t max_chunks(const ConstTensor& cu_seqlens, const ConstTensor& like, std::int64_t chunk_size) {
  const std::int64_t tokens = like.dim(1);
  if (!cu_seqlens.defined()) return static_cast<std::uint32_t>(like.dim(0) * ceil_div(tokens, chunk_size));
  const std::int64_t sequences = cu_seqlens.dim(0) - 1;
  return static_cast<std::uint32_t>(std::min(tokens, tokens / chunk_size + sequences));
}

}  // namespace thalweg::metal
