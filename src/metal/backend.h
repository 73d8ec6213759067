#pragma once

#include "core/kernel.h"

namespace thalweg::metal {

const Backend& backend();

// In a build without Metal: what stands in for it from now on. For the command line and tests, whose executor runs the
// kernels on the host.
void set_backend(const Backend& stand_in);

}  // namespace thalweg::metal
