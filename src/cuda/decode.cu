#include "cuda/decode.h"

namespace thalweg::cu {

DecodeKernel decode_kernel(std::int64_t k, DType state, bool together) {
  return pick_decode(k, state, together, [&]<int kK, class State, bool kAllTogether>() -> DecodeKernel {
    return decode<kK, State, kAllTogether>;
  });
}

}  // namespace thalweg::cu
