#include "cuda/experts/split.h"

#include "cuda/experts/split_kernel.h"

namespace thalweg::cu {

THALWEG_SPLIT(kQ4_0)
THALWEG_SPLIT(kQ4_1)
THALWEG_SPLIT(kQ4_K)

}  // namespace thalweg::cu
