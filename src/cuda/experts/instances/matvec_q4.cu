#include "cuda/experts/matvec.h"
#include "cuda/experts/matvec_kernel.h"

namespace thalweg::cu {

THALWEG_BLOCK_MATVEC(kQ4_0)
THALWEG_BLOCK_MATVEC(kQ4_1)
THALWEG_BLOCK_MATVEC(kQ4_K)

}  // namespace thalweg::cu
