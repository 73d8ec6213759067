#pragma once

// What the expert matmuls and linear share on CUDA. linear is an expert matmul with one expert, whose rows are tokens.
// weight is [E,N,K], of linear [N,K]; pairs are the pairs of token and slot, of linear the rows.

#include <cstdint>
#include <string>

#include "cuda/device.h"
#include "cuda/experts/experts.h"
#include "thalweg/moe.h"

namespace thalweg::cu {

ExpertMatmul expert_matmul(const ExpertMatmulArgs& args);
ExpertMatmul expert_matmul(const LinearArgs& args);

// Empty, or why the blocks cannot be read at their addresses.
std::string aligned_blocks(const ConstTensor& weight);
// Empty, or why rows cannot be read 16 bytes at a time.
std::string aligned_rows(const ConstTensor& weight);

// `matvec`: a product of matrix and vector for each pair. Empty, or why it cannot run.
std::string matvec_supports(const ConstTensor& weight, std::int64_t pairs);
void run_matvec(const ExpertMatmul& p, const ConstTensor& weight, const Stream& stream, std::string_view operation);

// `matvec_mxfp4`: the same for MXFP4, on the tensor cores.
std::string matvec_mxfp4_supports(const ConstTensor& weight, std::int64_t pairs, const DeviceProperties& device);
void run_matvec_mxfp4(const ExpertMatmul& p, const Stream& stream, std::string_view operation);

// `stream`: each weight is read once for up to 32 rows of its expert and multiplied on the tensor cores.
std::string stream_supports(const ConstTensor& weight, std::int64_t pairs);
std::string stream_rounding(const ConstTensor& weight, std::int64_t pairs);  // what it rounds, for explain()
std::size_t stream_workspace(const ConstTensor& x, const ConstTensor& weight, std::int64_t pairs);
void run_stream(const ExpertMatmul& p, const ConstTensor& x, const ConstTensor& weight, Workspace workspace,
                const Stream& stream, std::string_view operation);

// `bytes`, of linear: one row of activations times weights as bytes on the tensor cores. Empty, or why it cannot run.
// The workspace, for rows of k activations, has the row's records, which are written once for all products of a row.
std::string bytes_supports(const ConstTensor& weight, std::int64_t rows, const DeviceProperties& device);
std::size_t bytes_workspace(std::int64_t k);
void write_row_records(const ConstTensor& x, Workspace workspace, const Stream& stream, std::string_view operation);
void run_bytes(const ExpertMatmul& p, const ConstTensor& weight, Workspace workspace, const Stream& stream,
               std::string_view operation);

// `split`, of linear: the warps of a block divide the columns of its rows. Empty, or why it cannot run.
std::string split_supports(const ConstTensor& weight, std::int64_t rows);
void run_split(const ExpertMatmul& p, const ConstTensor& x, const ConstTensor& weight, const Stream& stream,
               std::string_view operation);

}  // namespace thalweg::cu
