#pragma once

#include <string_view>

#include "ops/check.h"
#include "thalweg/moe.h"

namespace thalweg {

// Every id in 0..E-1, where values may be read.
void check_expert_ids(const Check& check, const ConstTensor& expert_ids, const Dim& experts);
void check_expert_matmul(Check& check, const ExpertMatmulArgs& args);
// A bias [E] of a router, whose shape has been checked: finite numbers, where values may be read.
void check_router_bias(const Check& check, std::string_view argument, const ConstTensor& bias);
void check_score(const Check& check, RouterScore score);
void check_precision(const Check& check, MatmulPrecision precision);

}  // namespace thalweg
