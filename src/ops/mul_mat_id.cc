#include "ops/dispatch.h"
#include "ops/expert_checks.h"

namespace thalweg {

void validate(const MulMatIdArgs& args, Check& check) { check_expert_matmul(check, args); }

THALWEG_OPERATION(mul_mat_id, MulMatIdArgs);

}  // namespace thalweg
