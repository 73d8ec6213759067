// The Metal backend of a build without it.

#include "metal/backend.h"

namespace thalweg::metal {

const Backend& backend() {
  static const Backend instance{DeviceType::kMetal, "this build has no Metal backend", {}, nullptr, nullptr};
  return instance;
}

}  // namespace thalweg::metal
