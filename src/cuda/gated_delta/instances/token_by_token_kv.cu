#include "cuda/gated_delta/token_by_token.h"

namespace thalweg::cu {

template TokenByTokenKernel token_by_token_kernel<StateLayout::kKV>(std::int64_t k);

}  // namespace thalweg::cu
