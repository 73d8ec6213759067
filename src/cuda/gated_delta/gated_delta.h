#pragma once

// Host code that the kernels of the gated delta rule share.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "cuda/common/tensor_view.h"
#include "cuda/gated_delta/rule.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::cu {

inline float resolve_scale(const std::optional<float>& scale, std::int64_t k) {
  return scale ? *scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(k)));
}

inline GateViews gate_views(const GateInputs& gates) {
  return {elements(gates.a), elements(gates.b), elements(gates.a_log), elements(gates.dt_bias)};
}

inline CompactGateViews compact_gate_views(const GateInputs& gates) {
  return {compact<2>(gates.a), compact<2>(gates.b), compact<1>(gates.a_log), compact<1>(gates.dt_bias)};
}

// An optional i32 argument that kernels read from device memory.
inline const std::int32_t* integers(const ConstTensor& tensor) {
  return tensor.defined() ? static_cast<const std::int32_t*>(tensor.data) : nullptr;
}

inline SlotTable slot_table(const ConstTensor& state_indices, const Tensor& fault, std::int64_t slots) {
  return {integers(state_indices), fault.defined() ? static_cast<std::int32_t*>(fault.data) : nullptr,
          static_cast<std::int32_t>(std::min<std::int64_t>(slots, std::numeric_limits<std::int32_t>::max()))};
}

// The states that an operation returns besides the final ones; each may be absent.
struct StatesBetween {
  Tensor snapshots;
  Tensor checkpoints;
  int checkpoint_tokens = 0;
};

// Empty if the arguments fit into one launch of token_by_token, else the reason why not.
std::string token_by_token_supports(const GatedDeltaRuleArgs& args);
// The whole rule, one token after the other, in f32: every shape, dtype, layout and stride of the contract.
void run_token_by_token(const GatedDeltaRuleArgs& args, const StatesBetween& states, const Stream& stream,
                        std::string_view operation);

}  // namespace thalweg::cu
