#pragma once

// The kernels of moe_ffn, and what several of them share: sizes, routing, the shared expert by tiles, and the sum over
// slots. T tokens, D hidden, E experts, S slots, I inner, J inner of the shared expert.

#include <cstdint>
#include <string>

#include "core/arena.h"
#include "core/kernel.h"
#include "cuda/common/elements.h"
#include "cuda/experts/expert_range.h"
#include "cuda/experts/routing.h"
#include "cuda/experts/tiled.h"
#include "cuda/launch.h"

namespace thalweg::cu {

inline bool has_shared(const MoeFfnArgs& args) { return args.shared_gate.defined(); }
inline std::int64_t num_tokens(const MoeFfnArgs& args) { return args.x.dim(0); }
inline std::int64_t num_pairs(const MoeFfnArgs& args) { return args.x.dim(0) * args.top_k; }
inline std::int64_t num_experts(const MoeFfnArgs& args) { return args.router.dim(0); }  // of the router
// Those of this rank, L of them.
inline std::int64_t num_experts_here(const MoeFfnArgs& args) { return args.gate.dim(0); }
inline bool has_all_experts(const MoeFfnArgs& args) { return num_experts_here(args) == num_experts(args); }
inline ExpertRange experts_here(const MoeFfnArgs& args) {
  return {args.first_expert, static_cast<int>(num_experts_here(args))};
}
inline std::int64_t hidden_size(const MoeFfnArgs& args) { return args.x.dim(1); }
inline std::int64_t inner_size(const MoeFfnArgs& args) { return args.gate.dim(1); }
inline std::int64_t shared_inner_size(const MoeFfnArgs& args) { return has_shared(args) ? args.shared_gate.dim(0) : 0; }

// Weights whose rows lie together; without data if `weight` is absent.
struct WeightRows;
WeightRows weight_rows(const ConstTensor& weight);

// The router's logits and the choice of experts. Ids count from the first expert of this rank; -1: another rank's.
struct MoeRouting {
  bool wgmma;         // else mma
  int splits;         // of the columns
  float* logits;      // [splits,T,E]
  std::byte* staged;  // the router as the wgmma kernel reads it
  std::int32_t* ids;  // [T,S]
  float* weights;     // [T,S]

  MoeRouting(const MoeFfnArgs& args, const Stream& stream, Arena& arena);

  ConstTensor id_tensor(const MoeFfnArgs& args) const;
  void run(const MoeFfnArgs& args, const DeviceProperties& device, cudaStream_t stream) const;
};
// Whether experts are chosen by softmax without a bias, as the kernels do that choose within a product.
inline bool routes_by_softmax(const MoeFfnArgs& args) {
  return args.score == RouterScore::kSoftmax && !args.router_bias.defined();
}
// Empty, or why there is no routing for these arguments.
std::string routing_reason(const MoeFfnArgs& args);
// The kernel that computes the logits, for explain().
std::string routing_remark(const MoeFfnArgs& args);

// The shared expert by tiles.
struct SharedTiles {
  std::uint16_t* activated;  // staged [T,J]
  Bf16* products;            // [T,D]

  SharedTiles(const MoeFfnArgs& args, Arena& arena);

  // x is staged (token_tiles.h).
  void run(const MoeFfnArgs& args, const std::uint16_t* x, const DeviceProperties& device, cudaStream_t stream) const;
};
std::string shared_tiles_reason(const MoeFfnArgs& args, const DeviceProperties& device);

// products = down (silu(gate x) * up x) by tiles; `first` and `second` have the rows of both matmuls.
void run_gated_tiles(const ConstTensor& gate, const ConstTensor& up, const ConstTensor& down, TiledMatmul first,
                     TiledMatmul second, std::uint16_t* activated, Bf16* products, const DeviceProperties& device,
                     cudaStream_t stream);

// y[t,:] = sum_s weights[t,s] products[t,s,:] + sigmoid(x[t,:] . shared_router) shared[t,:], slots in order. products
// [T,S,D], weights [T,S]; shared [T,D] is read only if there is a shared expert. Product is Bf16 or float. ids [T,S] is
// read only if this rank has some of the experts: slots of -1 add nothing, and their products are not read.
template <class Product>
void run_combine(const MoeFfnArgs& args, const Product* products, const float* weights, const std::int32_t* ids,
                 const Product* shared, const DeviceProperties& device, cudaStream_t stream);

// Arguments of mul_mat_id: y[T,S,N] of `dtype` = weight[E,N,K] x.
MulMatIdArgs expert_product(const MoeFfnArgs& args, const ConstTensor& weight, const ConstTensor& x,
                            const ConstTensor& ids, void* y, DType dtype);

// ---- the kernels

std::string moe_matvec_supports(const MoeFfnArgs& args, const Stream& stream);
std::size_t moe_matvec_workspace(const MoeFfnArgs& args, const Stream& stream);
void run_moe_matvec(const MoeFfnArgs& args, Workspace workspace, const Stream& stream);

std::string moe_staged_supports(const MoeFfnArgs& args, const Stream& stream);
std::size_t moe_staged_workspace(const MoeFfnArgs& args, const Stream& stream);
void run_moe_staged(const MoeFfnArgs& args, Workspace workspace, const Stream& stream);

std::string moe_tiles_supports(const MoeFfnArgs& args, const Stream& stream);
std::size_t moe_tiles_workspace(const MoeFfnArgs& args, const Stream& stream);
void run_moe_tiles(const MoeFfnArgs& args, Workspace workspace, const Stream& stream);

std::string moe_stream_supports(const MoeFfnArgs& args, const Stream& stream);
std::size_t moe_stream_workspace(const MoeFfnArgs& args, const Stream& stream);
void run_moe_stream(const MoeFfnArgs& args, Workspace workspace, const Stream& stream);
std::string moe_stream_remark(const MoeFfnArgs& args);

std::string moe_grouped_supports(const MoeFfnArgs& args, const Stream& stream);
std::size_t moe_grouped_workspace(const MoeFfnArgs& args, const Stream& stream);
void run_moe_grouped(const MoeFfnArgs& args, Workspace workspace, const Stream& stream);
std::string moe_grouped_remark(const MoeFfnArgs& args);

std::string moe_steps_supports(const MoeFfnArgs& args, const Stream& stream);
std::size_t moe_steps_workspace(const MoeFfnArgs& args, const Stream& stream);
void run_moe_steps(const MoeFfnArgs& args, Workspace workspace, const Stream& stream);
std::string moe_steps_remark(const MoeFfnArgs& args);

// `exact`: the same steps, all of MatmulPrecision::kExact, with f32 between them.
std::string moe_exact_supports(const MoeFfnArgs& args, const Stream& stream);
std::size_t moe_exact_workspace(const MoeFfnArgs& args, const Stream& stream);
void run_moe_exact(const MoeFfnArgs& args, Workspace workspace, const Stream& stream);
std::string moe_exact_remark(const MoeFfnArgs& args);

}  // namespace thalweg::cu
