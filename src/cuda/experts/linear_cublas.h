#pragma once

// linear over bf16 weights by NVIDIA's cuBLASLt, whose library is looked for when the first such linear comes: nothing
// is linked, and a machine without it has this library's own kernels.

#include <string>

#include "thalweg/device.h"
#include "thalweg/nn.h"

namespace thalweg::cu {

std::string linear_cublas_supports(const LinearArgs& args, const Stream& stream);
std::size_t linear_cublas_workspace(const LinearArgs& args);
void run_linear_cublas(const LinearArgs& args, Workspace workspace, const Stream& stream);

}  // namespace thalweg::cu
