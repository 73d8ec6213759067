#include "ops/dispatch.h"
#include "ops/gated_delta_checks.h"

namespace thalweg {

void validate(const ChunkGatedDeltaRuleArgs& args, Check& check) { check_rule(check, args); }

THALWEG_OPERATION(chunk_gated_delta_rule, ChunkGatedDeltaRuleArgs);

}  // namespace thalweg
