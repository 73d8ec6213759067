#pragma once

#include "metal/kernels/parameters_layers.h"
#include "metal/launch.h"
#include "thalweg/moe.h"

namespace thalweg::metal {

inline constexpr std::string_view kTooManyLogits = "needs the logits of all experts in 32 KB of threadgroup memory";

// `p` must live until the launch has been encoded.
Launch route_launch(const RouteTopKArgs& args, RouteParameters& p);

}  // namespace thalweg::metal
