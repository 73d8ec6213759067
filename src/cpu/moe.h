#pragma once

#include "core/kernel.h"

namespace thalweg::cpu {

KernelList<LinearArgs> linear_kernels();
KernelList<ProjectionsArgs> projections_kernels();
KernelList<RouteTopKArgs> route_top_k_kernels();
KernelList<ExpertRowsArgs> expert_rows_kernels();
KernelList<MulMmIdArgs> mul_mm_id_kernels();
KernelList<MulMvIdArgs> mul_mv_id_kernels();
KernelList<MulMatIdArgs> mul_mat_id_kernels();
KernelList<MoeFfnArgs> moe_ffn_kernels();

}  // namespace thalweg::cpu
