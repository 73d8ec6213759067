#include "cuda/device/moe_down.h"
#include "cuda/device/moe_gate_up.h"

namespace thalweg::cu {

THALWEG_MOE_MATVEC(kQ8_0)
THALWEG_MOE_MATVEC(kQ6_K)
THALWEG_MOE_MATVEC(kQ2_K)

}  // namespace thalweg::cu
