#pragma once

#include "core/kernel.h"

namespace thalweg::metal {

const Backend& backend();

// In a build without Metal: replaces the backend, for the command line and the tests, whose executor runs the kernels
// on the host.
void set_backend(const Backend& stand_in);

}  // namespace thalweg::metal
