#include "cpu/gated_delta_rule.h"
#include "cpu/kernels.h"

namespace thalweg::cpu {

void add_gated_delta_rule_kernels(Backend& backend) {
  add_gated_delta_stage_kernels(backend);
  std::get<KernelList<ChunkStateArgs>>(backend.kernels) = chunk_state_kernels();
  std::get<KernelList<ChunkOutputArgs>>(backend.kernels) = chunk_output_kernels();
  std::get<KernelList<ChunkGatedDeltaRuleArgs>>(backend.kernels) = chunk_gated_delta_rule_kernels();
  std::get<KernelList<RecurrentGatedDeltaRuleArgs>>(backend.kernels) = recurrent_gated_delta_rule_kernels();
  std::get<KernelList<GatedDeltaPrepStepArgs>>(backend.kernels) = gated_delta_prep_step_kernels();
}

}  // namespace thalweg::cpu
