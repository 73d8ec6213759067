#pragma once

// What the CPU's kernels of moe_ffn share: routing before the experts, the weighted sum after them.

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/arena.h"
#include "cpu/expert_matmul.h"
#include "thalweg/moe.h"

namespace thalweg::cpu {

struct FfnSteps {
  std::int64_t tokens, slots, hidden, inner, shared_inner;
  Activations x;      // f32
  float* logits;      // [T,E]
  std::int32_t* ids;  // [T,S] among the experts that are here, -1: elsewhere
  float* weights;     // [T,S]
  ExpertRows lists;
  float* activated;         // [T*S,I] silu(gate x) * (up x)
  float* products;          // [T*S,D] down of them
  float* shared_activated;  // [T,J]
  float* shared_products;   // [T,D]
  float* rows;              // per worker: two of D and two of E
  float* scratch;           // per worker
  std::int64_t scratch_floats;

  // scratch_floats: at least product_floats().
  FfnSteps(const MoeFfnArgs& args, std::int64_t scratch_floats, const Stream& stream, Arena& arena);

  // From x, which must be prepared: experts and weights of each token, and the lists of pairs.
  void route(const MoeFfnArgs& args, const Stream& stream);
  // y[t,:] = sum_s weight_s products[t,s,:] + sigmoid(x . shared_router) shared_products[t,:], slots in order.
  void combine(const MoeFfnArgs& args, const Stream& stream) const;

  float* activated_row(std::int64_t pair) const { return activated + pair * inner; }
  float* product_row(std::int64_t pair) const { return products + pair * hidden; }
  float* shared_activated_row(std::int64_t t) const { return shared_activated + t * shared_inner; }
  float* shared_product_row(std::int64_t t) const { return shared_products + t * hidden; }
};

// Microseconds without matrix units.
double ffn_cost(const MoeFfnArgs& args, const Stream& stream);

// moe_ffn on matrix units.
std::string tile_ffn_reason(const MoeFfnArgs& args, const Stream& stream);
std::size_t tile_ffn_workspace(const MoeFfnArgs& args, const Stream& stream);
void run_tile_ffn(const MoeFfnArgs& args, Workspace workspace, const Stream& stream);
double tile_ffn_cost(const MoeFfnArgs& args, const Stream& stream);

}  // namespace thalweg::cpu
