#pragma once

namespace thalweg::metal {

// src/metal/kernels as one program; written by metal_embed.
extern const char* const kKernelSource;

}  // namespace thalweg::metal
