// The CUDA backend of a build without CUDA.

#include "cuda/backend.h"

namespace thalweg::cu {

const Backend& backend() {
  static const Backend instance{DeviceType::kCuda, "this build has no CUDA backend", {}, nullptr, nullptr};
  return instance;
}

}  // namespace thalweg::cu
