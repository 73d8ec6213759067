#include "cuda/gated_delta/decode.h"
#include "cuda/gated_delta/step_inputs_kernel.h"
#include "cuda/gated_delta/step_one_kernel.h"
#include "cuda/gated_delta/step_states_kernel.h"

namespace thalweg::cu {
namespace {

template <int kK, int kTokens, class Sequence>
SplitStep step_after_inputs(DType inputs) {
  SplitStep step;
  with_type(inputs, [&]<class X>(X) { step.inputs = step_inputs<kK, kTokens, X, Sequence>; });
  step.inputs_threads = kStepInputsThreads;
  step.inputs_channels = kStepInputsChannels<kTokens>;
  return step;
}

template <int kK, class State, Tokens kTokens, class Sequence>
SplitStep several_tokens(DType inputs, std::int64_t tokens) {
  SplitStep step = step_after_inputs<kK, kTogether, Sequence>(inputs);
  step.states = step_states<kK, State, kTokens, Sequence>;
  step.states_threads = kStepStatesThreads;
  step.states_shared_bytes =
      kOutputGatesBytes + decode_memory_bytes(kK, kTokens, tokens, kStepStatesV, kStepStatesWarps);
  return step;
}

template <int kK, class State>
SplitStep one_token(DType inputs) {
  SplitStep step = step_after_inputs<kK, 1, RowTokens>(inputs);
  step.states = step_one<kK, State>;
  step.head_blocks = kStepOneBlocks<kK, State>;
  step.states_threads = kStepOneThreads;
  step.norm = norm_outputs;
  step.norm_threads = kStepOneThreads;
  step.norm_heads = kDecodeOneWarps;
  return step;
}

}  // namespace

SplitStep split_step(std::int64_t k, DType inputs, DType state, std::int64_t tokens, bool snapshots, bool replays) {
  return pick_decode(k, state, [&]<int kK, class State>() -> SplitStep {
    if (replays) return several_tokens<kK, float, Tokens::kSubstitution, ReplayedTokens>(inputs, tokens);
    if (tokens == 1 && !snapshots) return one_token<kK, State>(inputs);
    if (snapshots) return several_tokens<kK, State, Tokens::kOneByOne, RowTokens>(inputs, tokens);
    return several_tokens<kK, State, Tokens::kSubstitution, RowTokens>(inputs, tokens);
  });
}

}  // namespace thalweg::cu
