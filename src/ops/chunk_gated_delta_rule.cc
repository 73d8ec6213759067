#include "core/sequences.h"
#include "ops/dispatch.h"
#include "ops/gated_delta_checks.h"

namespace thalweg {

void validate(const ChunkGatedDeltaRuleArgs& args, Check& check) {
  RuleDims d = check_rule(check, args);
  if (!(args.checkpoint_tokens > 0 && args.checkpoint_tokens % 64 == 0)) {
    check.fail("checkpoint_tokens", "a multiple of 64", std::to_string(args.checkpoint_tokens));
  }
  if (!args.checkpoints.defined()) return;
  Dim segments{"NC"};
  if (!args.cu_seqlens.defined() || check.host_values()) {
    segments.value = Sequences(args.cu_seqlens, d.b.value, d.t.value).chunks(args.checkpoint_tokens);
  }
  check_states_along(check, "checkpoints", args.checkpoints, args, d, segments);
}

THALWEG_OPERATION(chunk_gated_delta_rule, ChunkGatedDeltaRuleArgs);

}  // namespace thalweg
