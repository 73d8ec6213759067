// In place of the tiled matmul by wgmma, for builds without compute capability 9.0.

#include "cuda/tiled_matmul.h"

namespace thalweg::cu::sm90 {

bool tiles_take(DType) { return false; }
void launch_tiled_matmul(const TiledMatmul&, DType, bool, const DeviceProperties&, cudaStream_t, std::string_view) {}

}  // namespace thalweg::cu::sm90
