#pragma once

#include "core/kernel.h"

namespace thalweg::cpu {

// From chunk_local_cumsum to recompute_w_u.
void add_gated_delta_stage_kernels(Backend& backend);
KernelList<ChunkStateArgs> chunk_state_kernels();
KernelList<ChunkOutputArgs> chunk_output_kernels();
KernelList<ChunkGatedDeltaRuleArgs> chunk_gated_delta_rule_kernels();
KernelList<RecurrentGatedDeltaRuleArgs> recurrent_gated_delta_rule_kernels();
KernelList<GatedDeltaPrepStepArgs> gated_delta_prep_step_kernels();

}  // namespace thalweg::cpu
