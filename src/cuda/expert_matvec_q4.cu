#include "cuda/device/expert_matvec.h"
#include "cuda/expert_matvec.h"

namespace thalweg::cu {

THALWEG_BLOCK_MATVEC(kQ4_0)
THALWEG_BLOCK_MATVEC(kQ4_1)
THALWEG_BLOCK_MATVEC(kQ4_K)

}  // namespace thalweg::cu
