// Chooses among the formats' kernels, which are compiled in files of their own.

#include "cuda/experts/formats/dispatch.h"
#include "cuda/experts/tiled.h"

namespace thalweg::cu::sm90 {

template <DType kType>
void launch_tiled_matmul_of(const TiledMatmul& args, bool gated, const DeviceProperties& device, cudaStream_t stream,
                            std::string_view operation);

bool tiles_take(DType weight) { return weight != DType::kF32 && weight != DType::kI32; }

void launch_tiled_matmul(const TiledMatmul& args, DType weight, bool gated, const DeviceProperties& device,
                         cudaStream_t stream, std::string_view operation) {
  dispatch_format(weight, [&]<DType kType>() {
    if constexpr (kType != DType::kF32) launch_tiled_matmul_of<kType>(args, gated, device, stream, operation);
  });
}

}  // namespace thalweg::cu::sm90
