#pragma once

// Float64 oracles of the operations on logits.

#include <cstdint>
#include <vector>

#include "reference/array.h"
#include "thalweg/sampling.h"

namespace thalweg::reference {

struct Choice {
  std::int32_t token = -1;
  // The least distance of the draw and of each cut from where the token could become another, over what rounding by the
  // contract can move it. Below 1 the token is a matter of rounding. Greedy: infinite.
  double margin = 0.0;
};
// Row n by a full sort.
Choice sample_row(const SampleTokensArgs& args, std::int64_t n);

struct Logprobs {
  Array logprob;                   // [N], empty without tokens
  Array top_tokens, top_logprobs;  // [N,K] or empty
};
Logprobs logprobs(const LogprobsArgs& args, Precision precision);

struct Advanced {
  Array ids, positions, lengths, slots;  // [N]
  Array history;                         // [slots,C] or empty
};
Advanced advance(const AdvanceArgs& args);

}  // namespace thalweg::reference
