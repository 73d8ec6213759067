#pragma once

#include "core/kernel.h"

namespace thalweg::cpu {

// Each family's file fills its operations of the backend's table.
void add_gated_delta_rule_kernels(Backend& backend);
void add_nn_kernels(Backend& backend);
void add_moe_kernels(Backend& backend);
void add_quant_kernels(Backend& backend);

}  // namespace thalweg::cpu
