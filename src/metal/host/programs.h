#pragma once

#include <cstddef>

#include "metal/host/compiled_program.h"

namespace thalweg::metal {

// All files of src/metal/kernels, compiled for the host; CMake generates the list.
extern const CompiledProgram* const kPrograms[];
extern const std::size_t kNumPrograms;

}  // namespace thalweg::metal
