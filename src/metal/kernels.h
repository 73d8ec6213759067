#pragma once

#include "core/kernel.h"

namespace thalweg::metal {

// Each family's file fills its operations of the backend's table.
void add_chunk_stage_kernels(Backend& backend);

}  // namespace thalweg::metal
