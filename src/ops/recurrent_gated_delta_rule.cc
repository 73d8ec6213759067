#include "ops/dispatch.h"
#include "ops/gated_delta_checks.h"

namespace thalweg {

void validate(const RecurrentGatedDeltaRuleArgs& args, Check& check) {
  RuleDims d = check_rule(check, args);
  if (!args.snapshots.defined()) return;
  const bool vk = args.state_layout == StateLayout::kVK;
  DType state = DType::kF32;
  if (args.initial_state.defined()) state = args.initial_state.dtype;
  if (args.final_state.defined()) state = args.final_state.dtype;
  check.output("snapshots", args.snapshots, {DType::kF32, state}, d.b, d.t, d.hv, vk ? d.v : d.k, vk ? d.k : d.v);
}

THALWEG_OPERATION(recurrent_gated_delta_rule, RecurrentGatedDeltaRuleArgs);

}  // namespace thalweg
