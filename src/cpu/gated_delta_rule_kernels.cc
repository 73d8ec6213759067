#include "cpu/gated_delta_stages.h"
#include "cpu/kernels.h"

namespace thalweg::cpu {

void add_gated_delta_rule_kernels(Backend& backend) {
  std::get<KernelList<ChunkLocalCumsumArgs>>(backend.kernels) = chunk_local_cumsum_kernels();
  std::get<KernelList<L2normArgs>>(backend.kernels) = l2norm_kernels();
  std::get<KernelList<ChunkScaledDotKktArgs>>(backend.kernels) = chunk_scaled_dot_kkt_kernels();
  std::get<KernelList<SolveTrilArgs>>(backend.kernels) = solve_tril_kernels();
  std::get<KernelList<RecomputeWUArgs>>(backend.kernels) = recompute_w_u_kernels();
}

}  // namespace thalweg::cpu
