#pragma once

#include "core/kernel.h"

namespace thalweg::cu {

// Memory, copies, waiting and timing on CUDA devices.
const DeviceFunctions& device_functions();

}  // namespace thalweg::cu
