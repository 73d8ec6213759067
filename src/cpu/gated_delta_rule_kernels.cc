#include "cpu/gated_delta_rule.h"
#include "cpu/kernels.h"

namespace thalweg::cpu {

void add_gated_delta_rule_kernels(Backend& backend) {
  std::get<KernelList<ChunkLocalCumsumArgs>>(backend.kernels) = chunk_local_cumsum_kernels();
  std::get<KernelList<L2normArgs>>(backend.kernels) = l2norm_kernels();
  std::get<KernelList<ChunkScaledDotKktArgs>>(backend.kernels) = chunk_scaled_dot_kkt_kernels();
  std::get<KernelList<SolveTrilArgs>>(backend.kernels) = solve_tril_kernels();
  std::get<KernelList<RecomputeWUArgs>>(backend.kernels) = recompute_w_u_kernels();
  std::get<KernelList<ChunkStateArgs>>(backend.kernels) = chunk_state_kernels();
  std::get<KernelList<ChunkOutputArgs>>(backend.kernels) = chunk_output_kernels();
  std::get<KernelList<ChunkGatedDeltaRuleArgs>>(backend.kernels) = chunk_gated_delta_rule_kernels();
  std::get<KernelList<RecurrentGatedDeltaRuleArgs>>(backend.kernels) = recurrent_gated_delta_rule_kernels();
  std::get<KernelList<GatedDeltaPrepStepArgs>>(backend.kernels) = gated_delta_prep_step_kernels();
}

}  // namespace thalweg::cpu
