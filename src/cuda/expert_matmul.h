#pragma once

// What the expert matmuls and linear share on CUDA. linear is an expert matmul with one expert, whose rows are tokens.

#include <cstdint>
#include <string>

#include "cuda/device/experts.h"
#include "thalweg/moe.h"

namespace thalweg::cu {

ExpertMatmul expert_matmul(const ExpertMatmulArgs& args);
ExpertMatmul expert_matmul(const LinearArgs& args);

// One product of matrix and vector for each pair. Empty, or why not.
std::string matvec_supports(const ConstTensor& weight, std::int64_t pairs);
void run_matvec(const ExpertMatmul& p, std::int64_t pairs, DType weight, const Stream& stream,
                std::string_view operation);

}  // namespace thalweg::cu
