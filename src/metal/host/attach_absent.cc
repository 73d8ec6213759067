// A build without the executor. Without Metal itself, the backend's reason says what the executor needs.

#include "metal/backend.h"
#include "metal/host/attach.h"

namespace thalweg::metal {

void attach_executor() {
  static const Backend absent{DeviceType::kMetal, THALWEG_METAL_ABSENT, {}, nullptr, nullptr, nullptr, ""};
  if (!absent.unavailable.empty()) set_backend(absent);
}

}  // namespace thalweg::metal
