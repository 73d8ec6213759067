#include "cuda/experts/split.h"

#include "cuda/experts/split_kernel.h"

namespace thalweg::cu {

THALWEG_SPLIT(kQ5_0)
THALWEG_SPLIT(kQ5_1)
THALWEG_SPLIT(kQ5_K)

}  // namespace thalweg::cu
