#pragma once

// linear with BF16 weights by NVIDIA's cuBLASLt. The library is loaded at the first such call, not linked; without it,
// the other kernels of linear run.

#include <string>

#include "thalweg/device.h"
#include "thalweg/nn.h"

namespace thalweg::cu {

std::string linear_cublas_supports(const LinearArgs& args, const Stream& stream);
std::size_t linear_cublas_workspace(const LinearArgs& args);
void run_linear_cublas(const LinearArgs& args, Workspace workspace, const Stream& stream);

}  // namespace thalweg::cu
