#pragma once

// Float64 oracles of the mixture of experts and of linear. Weights are the block formats' unpacked values.

#include <cstdint>
#include <vector>

#include "reference/array.h"
#include "thalweg/moe.h"

namespace thalweg::reference {

struct Routing {
  Array ids;      // [T,S]
  Array weights;  // [T,S]
};
// Without a bias, orders experts by their logits, the same order as that of exact scores.
Routing route_top_k(const RouteTopKArgs& args, Precision precision);

struct ExpertRows {
  Array offsets;  // [E+1]
  Array rows;     // [T*S]; -1 behind the last expert's
};
ExpertRows expert_rows(const ExpertRowsArgs& args);

Array mul_mat_id(const ExpertMatmulArgs& args, Precision precision);  // [T,S,N]; zeros for absent experts
// Only elements `indices` of the result, for weights too large to unpack.
std::vector<double> mul_mat_id_at(const ExpertMatmulArgs& args, const std::vector<std::int64_t>& indices);

Array linear(const LinearArgs& args, Precision precision);   // [T,N]
Array moe_ffn(const MoeFfnArgs& args, Precision precision);  // [T,D]; the router is never rounded

}  // namespace thalweg::reference
