#pragma once

// Mixture of experts: routing, the matmul of each token with its own experts' (quantised) weights, the whole block.
//
// Sizes: E experts, T tokens, S = top_k slots per token, K inputs and N outputs of a matmul, D hidden, I expert hidden.
// Expert ids must be in 0..E-1. The CPU backend refuses others; on a GPU nobody sees them beforehand: kernels skip such
// a slot and leave its outputs as they are, and CUDA raises kFaultExpertIds. Arithmetic is that of MatmulPrecision;
// results are rounded once.

#include <string_view>

#include "thalweg/api.h"
#include "thalweg/nn.h"
#include "thalweg/operation.h"
#include "thalweg/tensor.h"

THALWEG_API_BEGIN
namespace thalweg {

// p = softmax(router_logits) over all experts in f32; the top_k largest in descending order, ties to the lower id.
struct RouteTopKArgs {
  static constexpr std::string_view kName = "route_top_k";
  ConstTensor router_logits;  // [T,E], f32, f16 or bf16
  Tensor expert_ids;          // [T,S] i32
  Tensor expert_weights;      // [T,S] f32
  bool renormalize = true;    // divide the chosen probabilities by their sum
};

// The expert row lists ("row-id fan-out"): which (token, slot) pairs each expert serves, in ascending order.
// rows[expert_offsets[e] .. expert_offsets[e+1]) hold token * S + slot. Deterministic.
struct ExpertRowsArgs {
  static constexpr std::string_view kName = "expert_rows";
  ConstTensor expert_ids;  // [T,S] i32
  Tensor expert_offsets;   // [E+1] i32; E is its size less one
  Tensor rows;             // [T*S] i32; on a GPU as many as there are valid ids, what follows is left as it is
  Tensor fault;            // [1] i32, optional: DeviceFault bits, written on GPUs only
};

// What the expert-indexed matmuls share: y[t,s,:] = weight[expert_ids[t,s]] x[t,(s),:].
struct ExpertMatmulArgs {
  ConstTensor weight;      // [E,N,K], any dtype but I32; rows contiguous
  ConstTensor x;           // [T,K], or [T,S,K] with one row per slot; f32, f16 or bf16
  ConstTensor expert_ids;  // [T,S] i32
  Tensor y;                // [T,S,N], f32 or dtype of x
  Tensor fault;            // [1] i32, optional: DeviceFault bits, written on GPUs only
  MatmulPrecision precision = MatmulPrecision::kExact;
};

// For many tokens: rows are grouped by expert, each weight row of a hit expert is unpacked once.
struct MulMmIdArgs : ExpertMatmulArgs {
  static constexpr std::string_view kName = "mul_mm_id";
};

// For few tokens: one matrix-vector product per slot; only the experts that are hit are touched.
struct MulMvIdArgs : ExpertMatmulArgs {
  static constexpr std::string_view kName = "mul_mv_id";
};

// Chooses between the two; explain() tells which.
struct MulMatIdArgs : ExpertMatmulArgs {
  static constexpr std::string_view kName = "mul_mat_id";
};

// The whole block: logits = x W_router^T; route_top_k; y = sum_s weight_s down(silu(gate x) * (up x)) + the shared
// expert, sigmoid(x . shared_router) down_sh(silu(gate_sh x) * (up_sh x)). The routing weight multiplies the output of
// down. The router's logits and the choice have the accuracy of f32 in either precision. kExact: every intermediate
// value is f32. kFast: what MatmulPrecision allows in each matmul and, on CUDA, silu(gate x) * (up x) and the experts'
// outputs in 16 bits; the error is at most twice that of the plain computation that rounds all of these
// (docs/operations).
struct MoeFfnArgs {
  static constexpr std::string_view kName = "moe_ffn";
  ConstTensor x;              // [T,D], f32, f16 or bf16
  ConstTensor router;         // [E,D], any dtype but I32
  ConstTensor gate;           // [E,I,D], any dtype but I32
  ConstTensor up;             // [E,I,D], dtype of gate; gate and up may be halves of one fused tensor (strided over E)
  ConstTensor down;           // [E,D,I], any dtype but I32
  ConstTensor shared_gate;    // [J,D], optional: all four shared tensors or none
  ConstTensor shared_up;      // [J,D]
  ConstTensor shared_down;    // [D,J]
  ConstTensor shared_router;  // [D] f32, f16 or bf16
  Tensor y;                   // [T,D], f32 or dtype of x
  int top_k = 0;              // 1..E
  bool renormalize = true;
  MatmulPrecision precision = MatmulPrecision::kExact;
};

void route_top_k(const RouteTopKArgs& a, Workspace w, const Stream& s);
void expert_rows(const ExpertRowsArgs& a, Workspace w, const Stream& s);
void mul_mm_id(const MulMmIdArgs& a, Workspace w, const Stream& s);
void mul_mv_id(const MulMvIdArgs& a, Workspace w, const Stream& s);
void mul_mat_id(const MulMatIdArgs& a, Workspace w, const Stream& s);
void moe_ffn(const MoeFfnArgs& a, Workspace w, const Stream& s);

}  // namespace thalweg
THALWEG_API_END
