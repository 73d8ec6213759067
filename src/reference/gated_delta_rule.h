#pragma once

// Float64 oracles of the gated delta rule: the sequential recurrence and, independent of it, the chunk form. Both are
// written for reading, not for speed.

#include <cstdint>
#include <vector>

#include "reference/array.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::reference {

// Stages. Each returns its operation's outputs, dense, by the contract in the public header.
Array chunk_local_cumsum(const ChunkLocalCumsumArgs& args, Precision precision);
Array l2norm(const L2normArgs& args, Precision precision);
Array chunk_scaled_dot_kkt(const ChunkScaledDotKktArgs& args, Precision precision);
Array solve_tril(const SolveTrilArgs& args, Precision precision);

struct WU {
  Array w;  // [B,T,HV,K]
  Array u;  // [B,T,HV,V]
};
WU recompute_w_u(const RecomputeWUArgs& args, Precision precision);

struct ChunkStates {
  Array h;            // [B,NC,HV,V,K]
  Array v_new;        // [B,T,HV,V]
  Array final_state;  // like the pool
};
ChunkStates chunk_state(const ChunkStateArgs& args, Precision precision);
Array chunk_output(const ChunkOutputArgs& args, Precision precision);

// A problem of the rule itself, after norms and gates.
struct Rule {
  Array q, k;     // [B,T,HK,K]
  Array v;        // [B,T,HV,V]
  Array g, beta;  // [B,T,HV]
  double scale = 1.0;
  HeadMap head_map = HeadMap::kGrouped;
  std::vector<std::int64_t> bounds;  // packed sequences [N+1]; empty: every batch row is one
  Array initial_state;               // [N,HV,V,K]
};
struct RuleResult {
  Array o;            // [B,T,HV,V]
  Array final_state;  // [N,HV,V,K]
  Array snapshots;    // [B,T,HV,V,K], empty unless requested
  Array checkpoints;  // [checkpoints,HV,V,K] of all sequences in order; empty unless requested
};
RuleResult recurrence(const Rule& rule, bool snapshots = false, std::int64_t checkpoint_tokens = 0);
RuleResult chunk_form(const Rule& rule, std::int64_t chunk_size);

// The arguments of a whole operation, with norms applied, gates computed and states gathered.
Rule read_rule(const GatedDeltaRuleArgs& args);

// Outputs of the whole operations as in memory: final_state is the pool, in which unused slots keep their contents.
struct GatedDeltaResult {
  Array o;            // [B,T,HV,V]
  Array final_state;  // like args.final_state; empty without one
  Array snapshots;    // like args.snapshots; empty without one
  Array conv_state;   // of gated_delta_prep_step with a convolution
  Array replay_x;     // of gated_delta_prep_step with replays, as the next two
  Array replay_a;
  Array replay_b;
};
GatedDeltaResult gated_delta_rule(const GatedDeltaRuleArgs& args, const Tensor& snapshots, Precision precision);
// The states before every `tokens` tokens of each sequence, like `checkpoints`.
Array checkpoints(const GatedDeltaRuleArgs& args, const Tensor& checkpoints, std::int64_t tokens, Precision precision);
GatedDeltaResult gated_delta_prep_step(const GatedDeltaPrepStepArgs& args, Precision precision);

}  // namespace thalweg::reference
