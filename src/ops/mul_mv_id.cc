#include "ops/dispatch.h"
#include "ops/expert_checks.h"

namespace thalweg {

void validate(const MulMvIdArgs& args, Check& check) { check_expert_matmul(check, args); }

THALWEG_OPERATION(mul_mv_id, MulMvIdArgs);

}  // namespace thalweg
