#pragma once

// moe_ffn of MatmulPrecision::kExact: every value between x and y is f32.

#include <cstddef>
#include <string>

#include "thalweg/moe.h"

namespace thalweg::cu {

std::string moe_exact_supports(const MoeFfnArgs& args, const Stream& stream);
std::size_t moe_exact_workspace(const MoeFfnArgs& args, const Stream& stream);
void run_moe_exact(const MoeFfnArgs& args, Workspace workspace, const Stream& stream);

}  // namespace thalweg::cu
