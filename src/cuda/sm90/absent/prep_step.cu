// In place of the cluster kernels of the fused step, for builds without compute capability 9.0.

#include "cuda/decode.h"
#include "cuda/prep_step.h"

namespace thalweg::cu {

PrepStepKernel prep_step_cluster_kernel_vk(std::int64_t) { return {}; }
PrepStepKernel prep_step_cluster_kernel_kv(std::int64_t) { return {}; }
DecodeStepKernel decode_step_kernel(std::int64_t, DType, Tokens, bool) { return nullptr; }

}  // namespace thalweg::cu
