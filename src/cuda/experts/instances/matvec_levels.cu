#include "cuda/experts/matvec.h"
#include "cuda/experts/matvec_kernel.h"

namespace thalweg::cu {

THALWEG_BLOCK_MATVEC(kIQ4_NL)
THALWEG_BLOCK_MATVEC(kIQ4_XS)
THALWEG_BLOCK_MATVEC(kMXFP4)
THALWEG_BLOCK_MATVEC(kQ3_K)

}  // namespace thalweg::cu
