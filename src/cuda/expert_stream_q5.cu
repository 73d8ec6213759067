#include "cuda/expert_stream.h"

#include "cuda/device/expert_stream.h"

namespace thalweg::cu {

THALWEG_EXPERT_STREAM(kQ5_0)
THALWEG_EXPERT_STREAM(kQ5_1)
THALWEG_EXPERT_STREAM(kQ5_K)

}  // namespace thalweg::cu
