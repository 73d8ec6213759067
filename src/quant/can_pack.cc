#include "thalweg/quant.h"

namespace thalweg {

bool can_pack(DType dtype) { return dtype != DType::kI32 && dtype != DType::kIQ4_XS; }

}  // namespace thalweg
