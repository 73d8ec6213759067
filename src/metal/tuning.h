#pragma once

// What the choice between Metal kernels rests on, with its source.

namespace thalweg::metal::tuning {

// Memory bandwidth of an M1, the smallest device of the backend, by Apple's specification (68 GB/s). No kernel has been
// timed on a GPU (docs/metal.md): costs count the bytes of weights that a kernel reads, and only their order is meant.
inline constexpr double kBytesPerMicrosecond = 68e3;

}  // namespace thalweg::metal::tuning
