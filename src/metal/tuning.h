#pragma once

// Costs of the Metal kernels, with their source.

namespace thalweg::metal::tuning {

// Memory bandwidth of an M1, the smallest device of the backend, by Apple's specification (68 GB/s). No kernel has been
// timed on a GPU (docs/metal.md): costs count the bytes of weights that a kernel reads, and only their order matters.
inline constexpr double kBytesPerMicrosecond = 68e3;

// Of a kernel for few rows where the stream asks for many, and the other way round (RowHint): it runs only if no other
// can.
inline constexpr double kAgainstHint = 1e30;

}  // namespace thalweg::metal::tuning
