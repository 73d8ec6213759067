#pragma once

// What private memory stores on the host: elsewhere than at its addresses, which have no access.

#include <cstddef>

#include "metal/launch.h"

namespace thalweg::metal {

void* allocate_private(std::size_t bytes);
void release_private(void* memory) noexcept;

// The launch with its buffers where they are stored; those in shared memory stay. Throws thalweg::Error where a
// buffer begins in private memory and ends outside of it.
Launch with_storage(const Launch& launch);

}  // namespace thalweg::metal
