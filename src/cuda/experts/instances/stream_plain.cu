#include "cuda/experts/stream.h"

#include "cuda/experts/stream_kernel.h"

namespace thalweg::cu {

THALWEG_EXPERT_STREAM(kF32)
THALWEG_EXPERT_STREAM(kF16)
THALWEG_EXPERT_STREAM(kBF16)

}  // namespace thalweg::cu
