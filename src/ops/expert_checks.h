#pragma once

#include "ops/check.h"
#include "thalweg/moe.h"

namespace thalweg {

// Every id in 0..E-1, where values may be read.
void check_expert_ids(const Check& check, const ConstTensor& expert_ids, const Dim& experts);
void check_expert_matmul(Check& check, const ExpertMatmulArgs& args);
void check_precision(const Check& check, MatmulPrecision precision);

}  // namespace thalweg
