#include "cuda/decode.h"

namespace thalweg::cu {

DecodeStepKernel decode_step_kernel(std::int64_t k, DType state, bool together) {
  return pick_decode(k, state, [&]<int kK, class State>() -> DecodeStepKernel {
    return together ? decode_step<kK, State, true> : decode_step<kK, State, false>;
  });
}

}  // namespace thalweg::cu
