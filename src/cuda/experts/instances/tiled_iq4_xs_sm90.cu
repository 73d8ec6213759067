#include "cuda/experts/tiled_sm90.h"

namespace thalweg::cu::sm90 {

THALWEG_TILED_MATMUL(kIQ4_XS);

}  // namespace thalweg::cu::sm90
