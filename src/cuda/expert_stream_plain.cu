#include "cuda/expert_stream.h"

#include "cuda/device/expert_stream.h"

namespace thalweg::cu {

THALWEG_EXPERT_STREAM(kF32)
THALWEG_EXPERT_STREAM(kF16)
THALWEG_EXPERT_STREAM(kBF16)

}  // namespace thalweg::cu
