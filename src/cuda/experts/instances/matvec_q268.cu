#include "cuda/experts/matvec.h"
#include "cuda/experts/matvec_kernel.h"

namespace thalweg::cu {

THALWEG_BLOCK_MATVEC(kQ8_0)
THALWEG_BLOCK_MATVEC(kQ6_K)
THALWEG_BLOCK_MATVEC(kQ2_K)

}  // namespace thalweg::cu
