#include "cuda/experts/matvec.h"
#include "cuda/experts/matvec_kernel.h"

namespace thalweg::cu {

THALWEG_BLOCK_MATVEC(kQ5_0)
THALWEG_BLOCK_MATVEC(kQ5_1)
THALWEG_BLOCK_MATVEC(kQ5_K)

}  // namespace thalweg::cu
