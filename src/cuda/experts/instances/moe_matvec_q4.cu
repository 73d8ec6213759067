#include "cuda/experts/moe_down_kernel.h"
#include "cuda/experts/moe_gate_up_kernel.h"

namespace thalweg::cu {

THALWEG_MOE_MATVEC(kQ4_0)
THALWEG_MOE_MATVEC(kQ4_1)
THALWEG_MOE_MATVEC(kQ4_K)

}  // namespace thalweg::cu
