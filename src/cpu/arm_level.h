#pragma once

// What of ARM's 8-bit products the processor has. Highway's NEON target has none of them; only the products of rows
// that were rounded to 8 bits differ between the levels, and not in their bits.

#include <string_view>
#include <vector>

#include "cpu/weight_matmul.h"

namespace thalweg::cpu {

enum class ArmLevel { kNeon, kDotProducts, kInt8Matrices };

constexpr std::string_view name_of(ArmLevel level) {
  return level == ArmLevel::kInt8Matrices ? "neon_i8mm" : level == ArmLevel::kDotProducts ? "neon_dotprod" : "neon";
}

std::vector<ArmLevel> arm_levels();  // of this machine, best first
ArmLevel arm_level();                // the selected one; the best by default
void select_arm_level(ArmLevel level);

const MatmulOps& weight_matmul_dotprod_ops();
const MatmulOps& weight_matmul_i8mm_ops();

}  // namespace thalweg::cpu
