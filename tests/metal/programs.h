#pragma once

#include <cstddef>

#include "metal/host/compiled_program.h"

namespace thalweg::metal {

// tests/metal/kernels, compiled for the host.
extern const CompiledProgram* const kTestPrograms[];
extern const std::size_t kNumTestPrograms;

}  // namespace thalweg::metal
