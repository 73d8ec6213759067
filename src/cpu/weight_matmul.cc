#include "cpu/weight_matmul.h"

#include "cpu/arm_level.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/weight_matmul.cc"
#include <hwy/foreach_target.h>
// Highway requires this order.
#include <hwy/highway.h>

#define THALWEG_MATMUL_OPS weight_matmul_ops
#include "cpu/weight_products-inl.h"

#if HWY_ONCE
namespace thalweg::cpu {

HWY_EXPORT(weight_matmul_ops);

#if defined(__aarch64__)
const MatmulOps& matmul_ops() {
  switch (arm_level()) {
    case ArmLevel::kInt8Matrices:
      return weight_matmul_i8mm_ops();
    case ArmLevel::kDotProducts:
      return weight_matmul_dotprod_ops();
    case ArmLevel::kNeon:
      break;
  }
  return HWY_STATIC_DISPATCH(weight_matmul_ops)();
}
#else
const MatmulOps& matmul_ops() { return HWY_DYNAMIC_DISPATCH(weight_matmul_ops)(); }
#endif

}  // namespace thalweg::cpu
#endif  // HWY_ONCE
