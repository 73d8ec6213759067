// The Metal backend of a build without Metal.

#include "metal/backend.h"

namespace thalweg::metal {
namespace {

const Backend*& current() {
  static const Backend absent{DeviceType::kMetal, "this build has no Metal backend", {}, nullptr, nullptr, nullptr, ""};
  static const Backend* instance = &absent;
  return instance;
}

}  // namespace

const Backend& backend() { return *current(); }
void set_backend(const Backend& stand_in) { current() = &stand_in; }

}  // namespace thalweg::metal
