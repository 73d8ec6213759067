#include "cuda/experts/stream.h"

#include "cuda/experts/stream_kernel.h"

namespace thalweg::cu {

THALWEG_EXPERT_STREAM(kQ2_K)
THALWEG_EXPERT_STREAM(kQ6_K)
THALWEG_EXPERT_STREAM(kQ8_0)

}  // namespace thalweg::cu
