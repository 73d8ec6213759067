#include "cuda/experts/stream.h"

#include "cuda/experts/stream_kernel.h"

namespace thalweg::cu {

THALWEG_EXPERT_STREAM(kQ5_0)
THALWEG_EXPERT_STREAM(kQ5_1)
THALWEG_EXPERT_STREAM(kQ5_K)

}  // namespace thalweg::cu
