#include "cpu/kernels.h"
#include "cpu/moe.h"

namespace thalweg::cpu {

void add_moe_kernels(Backend& backend) {
  std::get<KernelList<LinearArgs>>(backend.kernels) = linear_kernels();
  std::get<KernelList<ProjectionsArgs>>(backend.kernels) = projections_kernels();
  std::get<KernelList<RouteTopKArgs>>(backend.kernels) = route_top_k_kernels();
  std::get<KernelList<ExpertRowsArgs>>(backend.kernels) = expert_rows_kernels();
  std::get<KernelList<MulMmIdArgs>>(backend.kernels) = mul_mm_id_kernels();
  std::get<KernelList<MulMvIdArgs>>(backend.kernels) = mul_mv_id_kernels();
  std::get<KernelList<MulMatIdArgs>>(backend.kernels) = mul_mat_id_kernels();
  std::get<KernelList<MoeFfnArgs>>(backend.kernels) = moe_ffn_kernels();
}

}  // namespace thalweg::cpu
