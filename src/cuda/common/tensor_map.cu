#include "cuda/common/tensor_map.h"

#include <cuda_runtime.h>

namespace thalweg::cu {

decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    constexpr unsigned kVersion = 12000;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kVersion, cudaEnableDefault, &result);
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
      cudaGetLastError();
      function = nullptr;
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return found;
}

}  // namespace thalweg::cu
