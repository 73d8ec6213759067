#pragma once

#include "core/device_communicator.h"

namespace thalweg::cu {

// Ranks on CUDA devices, one for each, over NCCL.
const DeviceRanks& nccl_ranks();

}  // namespace thalweg::cu
