#include "cuda/experts/moe_staged_sm90.h"

namespace thalweg::cu {

THALWEG_MOE_STAGED(kQ5_0)
THALWEG_MOE_STAGED(kQ5_1)
THALWEG_MOE_STAGED(kQ5_K)

}  // namespace thalweg::cu
