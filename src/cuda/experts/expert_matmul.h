#pragma once

// What the expert matmuls and linear share on CUDA. linear is an expert matmul with one expert, whose rows are tokens.

#include <cstdint>
#include <string>

#include "cuda/experts/experts.h"
#include "thalweg/moe.h"

namespace thalweg::cu {

ExpertMatmul expert_matmul(const ExpertMatmulArgs& args);
ExpertMatmul expert_matmul(const LinearArgs& args);
// Whether all weight rows begin at multiples of 16 bytes.
bool has_aligned_rows(const ExpertMatmul& p);

// Empty, or why the blocks cannot be read where they lie.
std::string aligned_blocks(const ConstTensor& weight);
// The same for rows that are read 16 bytes at a time.
std::string aligned_rows(const ConstTensor& weight);

// One product of matrix and vector for each pair. Empty, or why not.
std::string matvec_supports(const ConstTensor& weight, std::int64_t pairs);
void run_matvec(const ExpertMatmul& p, DType weight, const Stream& stream, std::string_view operation);

// Each weight is read once for up to 32 rows of its expert, products on the matrix units; weight is [E,N,K] or [N,K].
std::string stream_supports(const ConstTensor& weight, std::int64_t pairs);
bool stream_rounds_weights(const ConstTensor& weight, std::int64_t pairs);
std::size_t stream_workspace(const ConstTensor& x, const ConstTensor& weight, std::int64_t pairs);
void run_stream(const ExpertMatmul& p, const ConstTensor& x, const ConstTensor& weight, Workspace workspace,
                const Stream& stream, std::string_view operation);

}  // namespace thalweg::cu
