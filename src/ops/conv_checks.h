#pragma once

// Conditions that the convolutions share.

#include "ops/check.h"
#include "thalweg/nn.h"

namespace thalweg {

// weight [C,W] and the optional bias [C]; W in 2..8. Leaves `window` bound to W - 1, the inputs that a state keeps.
void check_taps(Check& check, const ConstTensor& weight, const ConstTensor& bias, Dim& channels, Dim& window);
void check_activation(const Check& check, Activation activation);

}  // namespace thalweg
