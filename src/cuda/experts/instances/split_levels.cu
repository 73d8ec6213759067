#include "cuda/experts/split.h"

#include "cuda/experts/split_kernel.h"

namespace thalweg::cu {

THALWEG_SPLIT(kQ3_K)
THALWEG_SPLIT(kIQ4_NL)
THALWEG_SPLIT(kIQ4_XS)

}  // namespace thalweg::cu
