#include "cuda/experts/moe_down_kernel.h"
#include "cuda/experts/moe_gate_up_kernel.h"

namespace thalweg::cu {

THALWEG_MOE_MATVEC(kQ8_0)
THALWEG_MOE_MATVEC(kQ6_K)
THALWEG_MOE_MATVEC(kQ2_K)

}  // namespace thalweg::cu
