#include "cpu/backend.h"

#include "cpu/kernels.h"
#include "cpu/sampling.h"
#include "cpu/vector.h"

namespace thalweg::cpu {

const Backend& backend() {
  static const Backend instance = [] {
    Backend result{DeviceType::kCpu, "", {}, instruction_sets, select_instruction_set};
    add_gated_delta_rule_kernels(result);
    add_nn_kernels(result);
    add_moe_kernels(result);
    std::get<KernelList<SampleTokensArgs>>(result.kernels) = sample_tokens_kernels();
    std::get<KernelList<LogprobsArgs>>(result.kernels) = logprobs_kernels();
    std::get<KernelList<AdvanceArgs>>(result.kernels) = advance_kernels();
    add_quant_kernels(result);
    return result;
  }();
  return instance;
}

}  // namespace thalweg::cpu
