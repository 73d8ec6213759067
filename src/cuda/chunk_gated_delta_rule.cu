#include "cuda/gated_delta.h"
#include "cuda/kernels.h"

namespace thalweg::cu {
namespace {

std::string supports_tokens(const ChunkGatedDeltaRuleArgs& args, const Stream&) {
  return token_by_token_supports(args);
}

void run_tokens(const ChunkGatedDeltaRuleArgs& args, Workspace, const Stream& stream) {
  run_token_by_token(args, {}, stream, ChunkGatedDeltaRuleArgs::kName);
}

constexpr Kernel<ChunkGatedDeltaRuleArgs> kKernels[] = {
    {"token_by_token", supports_tokens, no_workspace<ChunkGatedDeltaRuleArgs>, run_tokens}};

}  // namespace

KernelList<ChunkGatedDeltaRuleArgs> chunk_gated_delta_rule_kernels() { return kKernels; }

}  // namespace thalweg::cu
