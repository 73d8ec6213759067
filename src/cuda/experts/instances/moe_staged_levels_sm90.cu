#include "cuda/experts/moe_staged_sm90.h"

namespace thalweg::cu {

THALWEG_MOE_STAGED(kIQ4_NL)
THALWEG_MOE_STAGED(kIQ4_XS)
THALWEG_MOE_STAGED(kMXFP4)
THALWEG_MOE_STAGED(kQ3_K)

}  // namespace thalweg::cu
