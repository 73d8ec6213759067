#include "ops/dispatch.h"
#include "ops/expert_checks.h"

namespace thalweg {

void validate(const MulMmIdArgs& args, Check& check) { check_expert_matmul(check, args); }

THALWEG_OPERATION(mul_mm_id, MulMmIdArgs);

}  // namespace thalweg
