// The products of weight_matmul.h with the 8-bit matrix products of ARM, usdot and usmmla: for processors that have
// them (arm_level.h).

#if defined(__aarch64__)

#define THALWEG_ARM_DOTS 2
#define THALWEG_MATMUL_OPS weight_matmul_i8mm_ops_here
#include "cpu/arm_level.h"
#include "cpu/weight_products-inl.h"

namespace thalweg::cpu {

const MatmulOps& weight_matmul_i8mm_ops() { return HWY_NAMESPACE::weight_matmul_i8mm_ops_here(); }

}  // namespace thalweg::cpu

#endif
