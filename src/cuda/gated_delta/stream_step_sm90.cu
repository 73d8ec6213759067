#include <algorithm>

#include "cuda/gated_delta/decode.h"

namespace thalweg::cu {

StreamStepKernel stream_step_kernel(std::int64_t k, DType state, std::int64_t tokens, std::int64_t heads,
                                    bool replays) {
  return pick_decode(k, state, [&]<int kK, class State>() {
    constexpr std::size_t kMaxShared = 227 * 1024;
    constexpr std::size_t kStage = sizeof(State) * kStreamStepV * kK;
    StreamStepKernel result;
    if (replays) {
      result.kernel = stream_step<kK, float, kTogether, ReplayedTokens>;
    } else {
      result.kernel = tokens == 1 ? stream_step<kK, State, 1> : stream_step<kK, State, kTogether>;
    }
    const std::size_t rest = StreamMemory<kK>::bytes(0, replays, tokens, heads);
    result.stages = static_cast<int>(std::min<std::size_t>(kStreamStepMaxStages, (kMaxShared - rest) / kStage));
    result.shared_bytes = rest + static_cast<std::size_t>(result.stages) * kStage;
    return result;
  });
}

}  // namespace thalweg::cu
