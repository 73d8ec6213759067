#include "cuda/device/moe_down.h"
#include "cuda/device/moe_gate_up.h"

namespace thalweg::cu {

THALWEG_MOE_MATVEC(kF32)
THALWEG_MOE_MATVEC(kF16)
THALWEG_MOE_MATVEC(kBF16)

}  // namespace thalweg::cu
