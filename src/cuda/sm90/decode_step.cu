#include "cuda/decode.h"

namespace thalweg::cu {

DecodeStepKernel decode_step_kernel(std::int64_t k, DType state, bool together) {
  return pick_decode(k, state, together, [&]<int kK, class State, bool kAllTogether>() -> DecodeStepKernel {
    return decode_step<kK, State, kAllTogether>;
  });
}

}  // namespace thalweg::cu
