#include "cuda/sm90/tiled_matmul.h"

namespace thalweg::cu::sm90 {

THALWEG_TILED_MATMUL(kQ5_K);

}  // namespace thalweg::cu::sm90
