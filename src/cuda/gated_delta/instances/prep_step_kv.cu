#include "cuda/gated_delta/prep_step.h"

namespace thalweg::cu {

PrepStepKernel prep_step_kernel_kv(std::int64_t k) { return instantiate_prep_step<StateLayout::kKV, false>(k); }

}  // namespace thalweg::cu
