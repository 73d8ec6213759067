// Stubs of what *_sm90.cu files define, for builds without compute capability 9.0. No supported kernel calls a
// launcher.

#include "cuda/experts/grouped_choice.h"
#include "cuda/experts/moe_staged.h"
#include "cuda/experts/routing.h"
#include "cuda/experts/tiled.h"
#include "cuda/gated_delta/chunk_kernels.h"
#include "cuda/gated_delta/decode.h"
#include "cuda/gated_delta/prep_step.h"
#include "cuda/layers/attention.h"

namespace thalweg::cu {

PrepStepKernel prep_step_cluster_kernel_vk(std::int64_t) { return {}; }
PrepStepKernel prep_step_cluster_kernel_kv(std::int64_t) { return {}; }
DecodeStepKernel decode_step_kernel(std::int64_t, DType, Tokens, bool) { return nullptr; }

namespace sm90 {

void launch_chunk_carries(const ChunkArguments&, DType, const DeviceProperties&, cudaStream_t) {}
void launch_chunk_scan(const ChunkArguments&, DType, const DeviceProperties&, cudaStream_t) {}
void launch_chunk_fused_bf16(const ChunkArguments&, int, const DeviceProperties&, cudaStream_t) {}
void launch_chunk_fused_f16(const ChunkArguments&, int, const DeviceProperties&, cudaStream_t) {}

void launch_grouped_choice(const GroupedChoice&, const DeviceProperties&, cudaStream_t, std::string_view) {}

void launch_attention_prefill(const AttentionCall&, DType, unsigned, const DeviceProperties&, cudaStream_t) {}

bool router_takes(std::int64_t, std::int64_t, std::int64_t, const DeviceProperties&) { return false; }
std::int64_t staged_router_bytes(std::int64_t, std::int64_t) { return 0; }
int router_splits(std::int64_t, std::int64_t, std::int64_t, int) { return 1; }
void launch_router_logits(const ConstTensor&, const ConstTensor&, void*, float*, int, const DeviceProperties&,
                          cudaStream_t, std::string_view) {}

StagedKernels staged_moe_kernels(DType) { return {}; }

bool tiles_take(DType) { return false; }
void launch_tiled_matmul(const TiledMatmul&, DType, bool, const DeviceProperties&, cudaStream_t, std::string_view) {}

}  // namespace sm90

}  // namespace thalweg::cu
