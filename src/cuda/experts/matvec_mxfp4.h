#pragma once

// One product of matrix and vector for each pair, of MXFP4, by the matrix units: part of `matvec`, where the device and
// the weights allow it.

#include "cuda/experts/experts.h"
#include "cuda/launch.h"

namespace thalweg::cu {

bool mxfp4_matvec_takes(const ExpertMatmul& p, const DeviceProperties& device);
void run_mxfp4_matvec(const ExpertMatmul& p, const DeviceProperties& device, const Stream& stream,
                      std::string_view operation);

}  // namespace thalweg::cu
