#include "cuda/gated_delta/decode.h"

namespace thalweg::cu {

DecodeStepKernel decode_step_kernel(std::int64_t k, DType state, Tokens tokens, bool narrow) {
  return pick_decode(k, state, [&]<int kK, class State>() -> DecodeStepKernel {
    if (tokens != Tokens::kOneByOne) return decode_step<kK, State, Tokens::kAll, false>;
    return narrow ? decode_step<kK, State, Tokens::kOneByOne, true> : decode_step<kK, State, Tokens::kOneByOne, false>;
  });
}

}  // namespace thalweg::cu
