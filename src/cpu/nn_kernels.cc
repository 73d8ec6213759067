#include "cpu/kernels.h"
#include "cpu/nn.h"

namespace thalweg::cpu {

void add_nn_kernels(Backend& backend) {
  std::get<KernelList<CausalConv1dArgs>>(backend.kernels) = causal_conv1d_kernels();
  std::get<KernelList<CausalConv1dUpdateArgs>>(backend.kernels) = causal_conv1d_update_kernels();
  std::get<KernelList<RmsNormArgs>>(backend.kernels) = rms_norm_kernels();
  std::get<KernelList<GatedRmsNormArgs>>(backend.kernels) = gated_rms_norm_kernels();
  std::get<KernelList<RopeArgs>>(backend.kernels) = rope_kernels();
  std::get<KernelList<AttentionArgs>>(backend.kernels) = attention_kernels();
  std::get<KernelList<StoreKvArgs>>(backend.kernels) = store_kv_kernels();
  std::get<KernelList<SplitQkvzArgs>>(backend.kernels) = split_qkvz_kernels();
  std::get<KernelList<EmbeddingArgs>>(backend.kernels) = embedding_kernels();
  std::get<KernelList<AddArgs>>(backend.kernels) = add_kernels();
  std::get<KernelList<SwigluArgs>>(backend.kernels) = swiglu_kernels();
}

}  // namespace thalweg::cpu
