#include "ops/dispatch.h"
#include "ops/gated_delta_checks.h"

namespace thalweg {

void validate(const RecurrentGatedDeltaRuleArgs& args, Check& check) {
  RuleDims d = check_rule(check, args);
  if (args.snapshots.defined()) check_states_along(check, "snapshots", args.snapshots, args, d, d.t);
}

THALWEG_OPERATION(recurrent_gated_delta_rule, RecurrentGatedDeltaRuleArgs);

}  // namespace thalweg
