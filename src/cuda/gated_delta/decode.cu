#include "cuda/gated_delta/decode.h"

namespace thalweg::cu {

DecodeKernel decode_kernel(std::int64_t k, DType state, Tokens tokens) {
  return pick_decode(k, state, [&]<int kK, class State>() -> DecodeKernel {
    if (tokens == Tokens::kOneByOne) return decode<kK, State, Tokens::kOneByOne>;
    return tokens == Tokens::kAll ? decode<kK, State, Tokens::kAll> : decode<kK, State, Tokens::kAllExact>;
  });
}

DecodeOneKernel decode_one_kernel(std::int64_t k, DType state) {
  return pick_decode(k, state, [&]<int kK, class State>() -> DecodeOneKernel {
    return {decode_one<kK, State>, kDecodeOneWarps<State>, DecodeOneTile<kK, State>::kWarpV};
  });
}

}  // namespace thalweg::cu
