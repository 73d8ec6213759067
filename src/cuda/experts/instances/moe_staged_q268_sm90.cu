#include "cuda/experts/moe_staged_sm90.h"

namespace thalweg::cu {

THALWEG_MOE_STAGED(kQ8_0)
THALWEG_MOE_STAGED(kQ6_K)
THALWEG_MOE_STAGED(kQ2_K)

}  // namespace thalweg::cu
