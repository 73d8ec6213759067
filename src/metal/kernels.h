#pragma once

#include "core/kernel.h"

namespace thalweg::metal {

// Adds all kernels of the backend.
void add_kernels(Backend& backend);

// Kernels by family.
void add_chunk_stage_kernels(Backend& backend);
void add_expert_kernels(Backend& backend);
void add_row_kernels(Backend& backend);
void add_move_kernels(Backend& backend);
void add_choice_kernels(Backend& backend);
void add_sampling_kernels(Backend& backend);
KernelList<AttentionArgs> attention_kernels();
KernelList<LinearArgs> linear_kernels();
KernelList<ProjectionsArgs> projections_kernels();
KernelList<MoeFfnArgs> moe_ffn_kernels();
KernelList<ChunkGatedDeltaRuleArgs> chunk_gated_delta_rule_kernels();
KernelList<RecurrentGatedDeltaRuleArgs> recurrent_gated_delta_rule_kernels();
KernelList<GatedDeltaPrepStepArgs> gated_delta_prep_step_kernels();

}  // namespace thalweg::metal
