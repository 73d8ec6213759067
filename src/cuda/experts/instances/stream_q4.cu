#include "cuda/experts/stream.h"

#include "cuda/experts/stream_kernel.h"

namespace thalweg::cu {

THALWEG_EXPERT_STREAM(kQ4_0)
THALWEG_EXPERT_STREAM(kQ4_1)
THALWEG_EXPERT_STREAM(kQ4_K)

}  // namespace thalweg::cu
