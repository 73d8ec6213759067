#pragma once

// Mixture of experts: routing, the matmul of each token with its own experts' (quantized) weights, the whole block.
//
// Sizes: E experts, T tokens, S = top_k slots per token, K inputs and N outputs of a matmul, D hidden, I expert hidden.
// An expert id is in 0..E-1, or -1: on another rank. Such a slot is skipped and its outputs are left as they are, so
// that a process that holds some of the experts runs those of every token (expert parallelism). The CPU backend refuses
// other ids. On a GPU the host cannot check ids: kernels skip such slots too, and CUDA raises kFaultExpertIds.
// Arithmetic is that of MatmulPrecision; results are rounded once. Any thread may call these functions.

#include <cstdint>
#include <string_view>

#include "thalweg/api.h"
#include "thalweg/nn.h"
#include "thalweg/operation.h"
#include "thalweg/tensor.h"

THALWEG_API_BEGIN
namespace thalweg {

// How a router's logits become scores.
enum class RouterScore : std::uint8_t {
  kSoftmax,  // over all experts
  kSigmoid,  // of each by itself
};

// p = the scores of router_logits, in f32; NaN counts as -infinity. The experts of the S largest logits, or with a bias
// of the S largest p + bias, in descending order, ties to the lower id. Their weights are p, without the bias.
struct RouteTopKArgs {
  static constexpr std::string_view kName = "route_top_k";
  ConstTensor router_logits;  // [T,E], f32, f16 or bf16
  ConstTensor bias;           // [E] f32, finite, optional
  Tensor expert_ids;          // [T,S] i32
  Tensor expert_weights;      // [T,S] f32
  RouterScore score = RouterScore::kSoftmax;
  bool renormalize = true;  // divide the weights by their sum, where it is above 0
};

// The expert row lists ("row-id fan-out"): which (token, slot) pairs each expert serves, in ascending order.
// rows[expert_offsets[e] .. expert_offsets[e+1]) hold token * S + slot. Deterministic.
struct ExpertRowsArgs {
  static constexpr std::string_view kName = "expert_rows";
  ConstTensor expert_ids;  // [T,S] i32
  Tensor expert_offsets;   // [E+1] i32; E is its size less one
  Tensor rows;             // [T*S] i32: as many as there are ids in 0..E-1, what follows is left as it is
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

// Chooses between the two; explain() says which.
struct MulMatIdArgs : ExpertMatmulArgs {
  static constexpr std::string_view kName = "mul_mat_id";
};

// The whole block: logits = x W_router^T; route_top_k by score and router_bias; y = sum_s weight_s down(silu(gate x) *
// (up x)) + the shared expert, sigmoid(x . shared_router) down_sh(silu(gate_sh x) * (up_sh x)). The routing weight
// multiplies the output of down. The router's logits and the choice have the accuracy of f32 in either precision.
// kExact: every intermediate value is f32. kFast: what MatmulPrecision allows in each matmul and, on CUDA, silu(gate x)
// * (up x) and the experts' outputs in 16 bits; the error is at most twice that of the plain computation that rounds
// all of these (docs/operations).
//
// A rank of several (expert parallelism) holds L of the router's E experts, first_expert to first_expert + L - 1: the
// choice is among all E, and slots of other experts add nothing to y, so that the ranks' y sum up to the block's. The
// weights of a token's slots are the same on every rank. Metal refuses L < E.
struct MoeFfnArgs {
  static constexpr std::string_view kName = "moe_ffn";
  ConstTensor x;              // [T,D], f32, f16 or bf16
  ConstTensor router;         // [E,D], any dtype but I32
  ConstTensor gate;           // [L,I,D], any dtype but I32; L = E unless this is a rank of several
  ConstTensor up;             // [L,I,D], dtype of gate; gate and up may be halves of one fused tensor (strided over L)
  ConstTensor down;           // [L,D,I], any dtype but I32
  ConstTensor shared_gate;    // [J,D], optional: all four shared tensors or none
  ConstTensor shared_up;      // [J,D]
  ConstTensor shared_down;    // [D,J]
  ConstTensor shared_router;  // [D] f32, f16 or bf16
  Tensor y;                   // [T,D], f32 or dtype of x
  int top_k = 0;              // 1..E
  bool renormalize = true;
  MatmulPrecision precision = MatmulPrecision::kExact;
  int first_expert = 0;  // 0..E-L
  RouterScore score = RouterScore::kSoftmax;
  ConstTensor router_bias;  // [E] f32, finite, optional: as of route_top_k
};

void route_top_k(const RouteTopKArgs& a, Workspace w, const Stream& s);
void expert_rows(const ExpertRowsArgs& a, Workspace w, const Stream& s);
void mul_mm_id(const MulMmIdArgs& a, Workspace w, const Stream& s);
void mul_mv_id(const MulMvIdArgs& a, Workspace w, const Stream& s);
void mul_mat_id(const MulMatIdArgs& a, Workspace w, const Stream& s);
void moe_ffn(const MoeFfnArgs& a, Workspace w, const Stream& s);

}  // namespace thalweg
THALWEG_API_END
