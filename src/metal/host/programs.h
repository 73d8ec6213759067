#pragma once

#include <cstddef>

#include "metal/host/compiled_program.h"

namespace thalweg::metal {

// Every file of src/metal/kernels, compiled for the host; the list is made by CMake.
extern const CompiledProgram* const kPrograms[];
extern const std::size_t kNumPrograms;

}  // namespace thalweg::metal
