#include "cuda/gated_delta/decode.h"
#include "cuda/gated_delta/step_inputs_kernel.h"
#include "cuda/gated_delta/step_norm_kernel.h"
#include "cuda/gated_delta/step_one_kernel.h"
#include "cuda/gated_delta/step_states_kernel.h"

namespace thalweg::cu {
namespace {

template <int kK, int kTokens, bool kMatrices, class Sequence>
SplitStep step_around_states(DType inputs) {
  SplitStep step;
  with_type(inputs, [&]<class X>(X) { step.inputs = step_inputs<kK, kTokens, kMatrices, X, Sequence>; });
  step.inputs_threads = StepInputsShape<kTokens, kMatrices>::kThreads;
  step.inputs_channels = StepInputsShape<kTokens, kMatrices>::kChannels;
  step.norm = step_norm<Sequence>;
  step.norm_threads = kStepNormThreads;
  step.norm_heads = kStepNormHeads;
  return step;
}

template <int kK, class State, bool kSnapshots, bool kFew, class Sequence>
SplitStep several_tokens(DType inputs) {
  constexpr bool kMatrices = !kSnapshots && !kFew;
  SplitStep step = step_around_states<kK, kTogether, kMatrices, Sequence>(inputs);
  step.states = step_states<kK, State, kSnapshots, kFew, Sequence>;
  step.head_blocks = kStepStatesBlocks<kFew>;
  step.states_threads = kStepStatesThreads<kFew>;
  if (kFew) step.norm = nullptr;
  return step;
}

template <int kK, class State>
SplitStep one_token(DType inputs) {
  SplitStep step = step_around_states<kK, 1, false, RowTokens>(inputs);
  step.states = step_one<kK, State>;
  step.head_blocks = kStepOneBlocks<kK, State>;
  step.states_threads = kStepOneThreads<State>;
  return step;
}

}  // namespace

SplitStep split_step(const SplitShape& shape) {
  return pick_decode(shape.k, shape.state, [&]<int kK, class State>() -> SplitStep {
    if (shape.tokens == 1 && !shape.snapshots) return one_token<kK, State>(shape.inputs);
    if (shape.snapshots) return several_tokens<kK, State, true, false, RowTokens>(shape.inputs);
    const auto by_substitution = [&]<class S, class Sequence>() {
      return shape.few ? several_tokens<kK, S, false, true, Sequence>(shape.inputs)
                       : several_tokens<kK, S, false, false, Sequence>(shape.inputs);
    };
    if (shape.replays) return by_substitution.template operator()<float, ReplayedTokens>();
    return by_substitution.template operator()<State, RowTokens>();
  });
}

}  // namespace thalweg::cu
