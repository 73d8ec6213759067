#pragma once

// What the choice between CUDA kernels rests on: costs and thresholds as data, each with the measurement it came from.
// Kernels know nothing of their rivals; a kernel's cost() is computed from the constants here.

namespace thalweg::cu::tuning {

namespace gated_delta {}

namespace experts {}

}  // namespace thalweg::cu::tuning
