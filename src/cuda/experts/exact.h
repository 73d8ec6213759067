#pragma once

// Matmuls of MatmulPrecision::kExact: f32 activations, weights as dequantize gives them, f32 sums. Plain kernels for
// every format; the others round activations or weights to 16 bits.

#include <string>
#include <string_view>

#include "cuda/experts/experts.h"
#include "thalweg/device.h"
#include "thalweg/tensor.h"

namespace thalweg::cu {

// Empty, or why the kernel cannot read weight [E,N,K] or [N,K].
std::string exact_supports(const ConstTensor& weight);
void run_exact(const ExpertMatmul& p, DType weight, const Stream& stream, std::string_view operation);

}  // namespace thalweg::cu
