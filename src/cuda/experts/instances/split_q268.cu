#include "cuda/experts/split.h"

#include "cuda/experts/split_kernel.h"

namespace thalweg::cu {

THALWEG_SPLIT(kQ2_K)
THALWEG_SPLIT(kQ6_K)
THALWEG_SPLIT(kQ8_0)

}  // namespace thalweg::cu
