#include "cuda/device/moe_down.h"
#include "cuda/device/moe_gate_up.h"

namespace thalweg::cu {

THALWEG_MOE_MATVEC(kQ5_0)
THALWEG_MOE_MATVEC(kQ5_1)
THALWEG_MOE_MATVEC(kQ5_K)

}  // namespace thalweg::cu
