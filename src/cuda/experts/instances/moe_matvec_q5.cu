#include "cuda/experts/moe_down_kernel.h"
#include "cuda/experts/moe_gate_up_kernel.h"

namespace thalweg::cu {

THALWEG_MOE_MATVEC(kQ5_0)
THALWEG_MOE_MATVEC(kQ5_1)
THALWEG_MOE_MATVEC(kQ5_K)

}  // namespace thalweg::cu
