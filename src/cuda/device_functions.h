#pragma once

#include "core/device_functions.h"

namespace thalweg::cu {

// Memory, copies, waiting and timing on CUDA devices.
const DeviceFunctions& device_functions();

// Streams, copies in their order, pinned memory and graphs.
const ResidentFunctions& resident_functions();

// Seconds of each run of what `enqueue` submits to a stream, measured as replays of a graph.
std::vector<double> time(Device device, const std::function<void(const Stream&)>& enqueue, int replays);
DeviceSpeed measure_speed(Device device);

}  // namespace thalweg::cu
