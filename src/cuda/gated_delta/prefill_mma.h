#pragma once

#include <cuda_runtime.h>

#include "cuda/gated_delta/prefill_mma_kernel.h"
#include "thalweg/dtype.h"

namespace thalweg::cu {

// The second pass for one K.
struct ChunkScanKernel {
  void (*kernel)(ChunkArguments args, Pass pass, int warps) = nullptr;
  int shared_bytes[2] = {};  // with half of the warps computing, and with all
};

// Instantiated in one file per K, which compile in parallel.
template <int K>
ChunkScanKernel chunk_scan_kernel(DType dtype) {
  using S = ScanShared<K>;
  constexpr int kWarps = kScanThreads / 32;
  return {dtype == DType::kBF16 ? chunk_scan_mma<__nv_bfloat16, K> : chunk_scan_mma<__half, K>,
          {S::bytes(kWarps / 2), S::bytes(kWarps)}};
}

extern template ChunkScanKernel chunk_scan_kernel<64>(DType dtype);
extern template ChunkScanKernel chunk_scan_kernel<128>(DType dtype);
extern template ChunkScanKernel chunk_scan_kernel<256>(DType dtype);

}  // namespace thalweg::cu
