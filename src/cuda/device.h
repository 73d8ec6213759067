#pragma once

// The properties of a CUDA device that kernels are chosen and sized by. Each capability has its own name.

#include <string>

namespace thalweg::cu {

struct DeviceProperties {
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;
  int shared_bytes = 0;  // shared memory of a multiprocessor
  // Clusters of 2, 4 and 8 blocks of a multiprocessor each that the device has room for at a time; 0: no clusters.
  int clusters_of_2 = 0;
  int clusters_of_4 = 0;
  int clusters_of_8 = 0;
  // The device has compute capability 9.0 or 10.0, and the build has machine code of *_sm90 or *_sm100 files.
  bool runs_sm90 = false;
  bool runs_sm100 = false;
  // The code that runs here supports programmatic dependent launch (common/pdl.h).
  bool programmatic_launch = false;
  // The code that runs here has bulk copies and mbarriers (common/mbarrier.h) in files without a suffix too.
  bool bulk_copies = false;
};

// Queries the driver once per device.
const DeviceProperties& properties(int device);

// Why kernels of *_sm90 or *_sm100 files cannot run on the device; empty if they can.
std::string sm90_reason(const DeviceProperties& device);
std::string sm100_reason(const DeviceProperties& device);

}  // namespace thalweg::cu
