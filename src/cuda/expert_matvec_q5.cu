#include "cuda/device/expert_matvec.h"
#include "cuda/expert_matvec.h"

namespace thalweg::cu {

THALWEG_BLOCK_MATVEC(kQ5_0)
THALWEG_BLOCK_MATVEC(kQ5_1)
THALWEG_BLOCK_MATVEC(kQ5_K)

}  // namespace thalweg::cu
