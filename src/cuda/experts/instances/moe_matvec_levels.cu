#include "cuda/experts/moe_down_kernel.h"
#include "cuda/experts/moe_gate_up_kernel.h"

namespace thalweg::cu {

THALWEG_MOE_MATVEC(kIQ4_NL)
THALWEG_MOE_MATVEC(kIQ4_XS)
THALWEG_MOE_MATVEC(kMXFP4)
THALWEG_MOE_MATVEC(kQ3_K)

}  // namespace thalweg::cu
