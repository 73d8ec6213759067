#pragma once

// Checks that the operations of the gated delta rule share.

#include <string>

#include "ops/check.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg {

void check_chunk_size(const Check& check, int chunk_size);
void check_head_map(const Check& check, HeadMap head_map, const Dim& num_k_heads, const Dim& num_v_heads);
// Rounding::kSeed is defined for bf16 alone.
void check_rounding(const Check& check, Rounding rounding, DType dtype);
// K and V of the whole operations.
void check_head_sizes(const Check& check, const Dim& k, const Dim& v);
// initial_state and final_state under `input` and `output` names, state_indices, aliasing between the two pools.
void check_states(Check& check, std::string_view input_name, const ConstTensor& initial_state,
                  std::string_view output_name, const Tensor& final_state, const ConstTensor& state_indices,
                  StateLayout layout, std::initializer_list<DType> dtypes, Dim& sequences, Dim& hv, Dim& v, Dim& k);
void check_gates(Check& check, const GateInputs& gates, Dim& b, Dim& t, Dim& hv);
// Everything that chunk_gated_delta_rule and recurrent_gated_delta_rule have in common.
struct RuleDims {
  Dim b{"B"}, t{"T"}, hk{"HK"}, hv{"HV"}, k{"K"}, v{"V"}, n{"N"};
};
RuleDims check_rule(Check& check, const GatedDeltaRuleArgs& args);
// States at several places of each sequence, [B,`places`,HV,V,K] as the layout says.
void check_states_along(Check& check, std::string_view name, const Tensor& states, const GatedDeltaRuleArgs& args,
                        RuleDims& d, Dim& places);
void check_qk_norm(Check& check, QkNorm norm, float eps, const ConstTensor& q_weight, const ConstTensor& k_weight,
                   Dim& hk, Dim& k);

}  // namespace thalweg
