#pragma once

// The CPU kernels of the dense operations, one list per operation.

#include <cstdint>

#include "core/kernel.h"
#include "thalweg/nn.h"

namespace thalweg::cpu {

KernelList<CausalConv1dArgs> causal_conv1d_kernels();
KernelList<CausalConv1dUpdateArgs> causal_conv1d_update_kernels();
KernelList<RmsNormArgs> rms_norm_kernels();
KernelList<GatedRmsNormArgs> gated_rms_norm_kernels();
KernelList<RopeArgs> rope_kernels();
KernelList<AttentionArgs> attention_kernels();
KernelList<StoreKvArgs> store_kv_kernels();
KernelList<SplitQkvzArgs> split_qkvz_kernels();
KernelList<EmbeddingArgs> embedding_kernels();
KernelList<AddArgs> add_kernels();
KernelList<SwigluArgs> swiglu_kernels();

// Element `offset` of the innermost row at `row`; not for block formats.
inline const void* element(DType dtype, const void* row, std::int64_t offset) {
  return static_cast<const char*>(row) + bytes_of(dtype, offset);
}
inline void* element(DType dtype, void* row, std::int64_t offset) {
  return static_cast<char*>(row) + bytes_of(dtype, offset);
}

}  // namespace thalweg::cpu
