#include "cuda/experts/moe_staged_sm90.h"

namespace thalweg::cu {

THALWEG_MOE_STAGED(kQ4_0)
THALWEG_MOE_STAGED(kQ4_1)
THALWEG_MOE_STAGED(kQ4_K)

}  // namespace thalweg::cu
