#pragma once

#include "core/kernel.h"

namespace thalweg::metal {

KernelList<ChunkGatedDeltaRuleArgs> chunk_gated_delta_rule_kernels();
KernelList<RecurrentGatedDeltaRuleArgs> recurrent_gated_delta_rule_kernels();
KernelList<GatedDeltaPrepStepArgs> gated_delta_prep_step_kernels();

// Each family's file fills its operations of the backend's table.
void add_gated_delta_rule_kernels(Backend& backend);
void add_expert_kernels(Backend& backend);

}  // namespace thalweg::metal
