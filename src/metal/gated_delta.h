#pragma once

// What the operations of the gated delta rule share when they describe their launches.

#include <algorithm>
#include <cmath>

#include "metal/kernels/parameters.h"
#include "metal/launch.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::metal {

// As in kernels/common.h.
inline constexpr std::uint32_t kThreadsOfKernel = 128;
inline constexpr std::uint32_t kSimdgroupsOfKernel = 4;

inline std::uint32_t whole(std::int64_t count, std::int64_t piece) {
  return static_cast<std::uint32_t>((count + piece - 1) / piece);
}

// Of [B,T,H,..]; all zero for an absent one.
inline View view_of(const ConstTensor& tensor) { return {tensor.stride(0), tensor.stride(1), tensor.stride(2)}; }

// Of [slots,HV,V,K], or with its last two exchanged.
inline StateView state_view(const ConstTensor& tensor, bool vk) {
  return {tensor.stride(0), 0, tensor.stride(1), tensor.stride(vk ? 2 : 3), tensor.stride(vk ? 3 : 2)};
}
// Of [B,NC,HV,V,K] or [B,T,HV,V,K].
inline StateView chunk_states_view(const ConstTensor& tensor, bool vk) {
  return {tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(vk ? 3 : 4), tensor.stride(vk ? 4 : 3)};
}

inline float scale_of(const std::optional<float>& scale, std::int64_t k) {
  return scale.value_or(1.0F / std::sqrt(static_cast<float>(k)));
}

// Buffers g or a, beta or b, a_log, dt_bias, and the constants that tell which.
void add_gates(Launch& launch, const ConstTensor& g, const ConstTensor& beta, const GateInputs& gates);

// `like` is a tensor [B,T,..].
inline SequencesOf sequences_of(const ConstTensor& cu_seqlens, const ConstTensor& like) {
  const std::int64_t count = cu_seqlens.defined() ? cu_seqlens.dim(0) - 1 : like.dim(0);
  return {static_cast<std::int32_t>(count), static_cast<std::int32_t>(like.dim(1))};
}

// Chunks of the whole batch, or the most that N sequences of T tokens in all can have: their bounds are the device's.
inline std::uint32_t most_chunks(const ConstTensor& cu_seqlens, const ConstTensor& like, std::int64_t chunk_size) {
  const std::int64_t tokens = like.dim(1);
  if (!cu_seqlens.defined()) return static_cast<std::uint32_t>(like.dim(0) * whole(tokens, chunk_size));
  const std::int64_t sequences = cu_seqlens.dim(0) - 1;
  return static_cast<std::uint32_t>(std::min(tokens, tokens / chunk_size + sequences));
}

}  // namespace thalweg::metal
