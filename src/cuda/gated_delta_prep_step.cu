#include "cuda/kernels.h"

namespace thalweg::cu {

KernelList<GatedDeltaPrepStepArgs> gated_delta_prep_step_kernels() { return {}; }

}  // namespace thalweg::cu
