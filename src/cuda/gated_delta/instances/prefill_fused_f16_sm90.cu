#include "cuda/gated_delta/prefill_fused_sm90.h"

namespace thalweg::cu::sm90 {

void launch_chunk_fused_f16(const ChunkArguments& args, int consumers, Pass pass, const DeviceProperties& device,
                            cudaStream_t stream) {
  launch_fused<__half>(args, consumers, pass, device, stream);
}

}  // namespace thalweg::cu::sm90
