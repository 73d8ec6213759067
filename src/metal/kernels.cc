#include "metal/kernels.h"

namespace thalweg::metal {

void add_kernels(Backend& backend) {
  add_chunk_stage_kernels(backend);
  add_expert_kernels(backend);
  add_row_kernels(backend);
  add_move_kernels(backend);
  add_choice_kernels(backend);
  add_sampling_kernels(backend);
  std::get<KernelList<AttentionArgs>>(backend.kernels) = attention_kernels();
  std::get<KernelList<LinearArgs>>(backend.kernels) = linear_kernels();
  std::get<KernelList<ProjectionsArgs>>(backend.kernels) = projections_kernels();
  std::get<KernelList<MoeFfnArgs>>(backend.kernels) = moe_ffn_kernels();
  std::get<KernelList<ChunkGatedDeltaRuleArgs>>(backend.kernels) = chunk_gated_delta_rule_kernels();
  std::get<KernelList<RecurrentGatedDeltaRuleArgs>>(backend.kernels) = recurrent_gated_delta_rule_kernels();
  std::get<KernelList<GatedDeltaPrepStepArgs>>(backend.kernels) = gated_delta_prep_step_kernels();
}

}  // namespace thalweg::metal
