#pragma once

#include <string>

#include "thalweg/gated_delta_rule.h"

namespace thalweg {

// For `supports` of kernels of the fused step that run whole sequences of equal length alone: empty, or the reason.
inline std::string no_drafts_reason(const GatedDeltaPrepStepArgs& args) {
  if (args.drafts) return "takes no drafts";
  if (args.replay_x.defined()) return "replays nothing";
  if (args.cu_seqlens.defined()) return "takes no packed sequences";
  return {};
}

}  // namespace thalweg
