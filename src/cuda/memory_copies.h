#pragma once

#include <span>

#include "core/device_functions.h"
#include "thalweg/device.h"

namespace thalweg::cu {

// ResidentFunctions::enqueue_copies.
void enqueue_copies(const Stream& stream, std::span<const MemoryCopy> copies);

}  // namespace thalweg::cu
