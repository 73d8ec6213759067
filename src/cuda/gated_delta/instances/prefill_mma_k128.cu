#include "cuda/gated_delta/prefill_mma.h"

namespace thalweg::cu {

template ChunkScanKernel chunk_scan_kernel<128>(DType dtype);

}  // namespace thalweg::cu
