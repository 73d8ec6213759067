#include "cuda/device/moe_down.h"
#include "cuda/device/moe_gate_up.h"

namespace thalweg::cu {

THALWEG_MOE_MATVEC(kQ4_0)
THALWEG_MOE_MATVEC(kQ4_1)
THALWEG_MOE_MATVEC(kQ4_K)

}  // namespace thalweg::cu
