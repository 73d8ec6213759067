#include "cuda/experts/tiled_sm90.h"

namespace thalweg::cu::sm90 {

THALWEG_TILED_MATMUL(kQ3_K);

}  // namespace thalweg::cu::sm90
