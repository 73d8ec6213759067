#pragma once

#include "core/kernel.h"

namespace thalweg::cpu {

// Each adds the kernels of a family of operations to the backend's table.
void add_gated_delta_rule_kernels(Backend& backend);
void add_nn_kernels(Backend& backend);
void add_moe_kernels(Backend& backend);
void add_quant_kernels(Backend& backend);

}  // namespace thalweg::cpu
