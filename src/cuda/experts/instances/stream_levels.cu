#include "cuda/experts/stream.h"

#include "cuda/experts/stream_kernel.h"

namespace thalweg::cu {

THALWEG_EXPERT_STREAM(kQ3_K)
THALWEG_EXPERT_STREAM(kIQ4_NL)
THALWEG_EXPERT_STREAM(kIQ4_XS)
THALWEG_EXPERT_STREAM(kMXFP4)

}  // namespace thalweg::cu
