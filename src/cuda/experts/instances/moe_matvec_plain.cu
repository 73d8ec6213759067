#include "cuda/experts/moe_down_kernel.h"
#include "cuda/experts/moe_gate_up_kernel.h"

namespace thalweg::cu {

THALWEG_MOE_MATVEC(kF32)
THALWEG_MOE_MATVEC(kF16)
THALWEG_MOE_MATVEC(kBF16)

}  // namespace thalweg::cu
