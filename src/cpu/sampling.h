#pragma once

// The CPU kernels of the operations on logits.

#include "core/kernel.h"

namespace thalweg::cpu {

KernelList<SampleTokensArgs> sample_tokens_kernels();
KernelList<LogprobsArgs> logprobs_kernels();
KernelList<AdvanceArgs> advance_kernels();

}  // namespace thalweg::cpu
