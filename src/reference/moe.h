#pragma once

// Float64 oracles of the mixture of experts and of linear. Weights are those that the block formats unpack to.

#include <cstdint>
#include <vector>

#include "reference/array.h"
#include "thalweg/moe.h"

namespace thalweg::reference {

struct Routing {
  Array ids;      // [T,S]
  Array weights;  // [T,S]
};
// Experts are compared by their logits, which orders them as their exact probabilities.
Routing route_top_k(const ConstTensor& router_logits, std::int64_t top_k, bool renormalize, Precision precision);

struct ExpertRows {
  Array offsets;  // [E+1]
  Array rows;     // [T*S]
};
ExpertRows expert_rows(const ExpertRowsArgs& args);

Array mul_mat_id(const ExpertMatmulArgs& args, Precision precision);  // [T,S,N]
// Only elements `indices` of the result, for weights too many to unpack.
std::vector<double> mul_mat_id_at(const ExpertMatmulArgs& args, const std::vector<std::int64_t>& indices);

Array linear(const LinearArgs& args, Precision precision);   // [T,N]
Array moe_ffn(const MoeFfnArgs& args, Precision precision);  // [T,D]; the router is never rounded

}  // namespace thalweg::reference
