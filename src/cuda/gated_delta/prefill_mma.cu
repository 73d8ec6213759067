// Launches the second pass of the chunked gated delta rule by mma.sync.

#include "cuda/gated_delta/prefill_mma.h"

#include <algorithm>

#include "cuda/gated_delta/chunk_kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

void launch(const ChunkArguments& args, DType dtype, Pass pass, const DeviceProperties& device, cudaStream_t stream) {
  static constexpr std::string_view kOperation = "chunk_gated_delta_rule";
  constexpr int kAllWarps = kScanThreads / 32;
  const int rows = args.value_width + (pass == Pass::kCarries ? args.key_width : 0);
  const std::int64_t walks = pass == Pass::kCarries ? args.segments : args.walks;
  // All warps have rows and share a block's tiles, unless blocks are few or V is no multiple of their rows: then half
  // of the warps have rows, in twice as many blocks, and the others copy.
  const std::int64_t blocks = rows / (kAllWarps * kScanWarpRows) * args.hv * walks;
  const bool half = rows % (kAllWarps * kScanWarpRows) != 0 || 2 * blocks <= device.multiprocessors;
  const int warps = half ? kAllWarps / 2 : kAllWarps;
  const ChunkScanKernel chosen = args.key_width == 64    ? chunk_scan_kernel<64>(dtype)
                                 : args.key_width == 128 ? chunk_scan_kernel<128>(dtype)
                                                         : chunk_scan_kernel<256>(dtype);
  const dim3 grid(static_cast<unsigned>(rows / (warps * kScanWarpRows)), static_cast<unsigned>(args.hv),
                  static_cast<unsigned>(walks));
  int bytes = chosen.shared_bytes[half ? 0 : 1];
  // Blocks are launched while the first pass ends, two to the multiprocessors that are free first. If there is a
  // multiprocessor for each block, half of the shared memory for each block spreads them.
  if (std::int64_t{grid.x} * grid.y * grid.z <= device.multiprocessors)
    bytes = std::max(bytes, device.shared_bytes / 2);
  allow_shared_memory(reinterpret_cast<const void*>(chosen.kernel), static_cast<std::size_t>(bytes), kOperation);
  pdl_launch(chosen.kernel, grid, kScanThreads, static_cast<std::size_t>(bytes), device, stream, kOperation, args, pass,
             warps);
}

}  // namespace

void launch_chunk_carries(const ChunkArguments& args, DType dtype, const DeviceProperties& device,
                          cudaStream_t stream) {
  launch(args, dtype, Pass::kCarries, device, stream);
}

void launch_chunk_scan(const ChunkArguments& args, DType dtype, const DeviceProperties& device, cudaStream_t stream) {
  launch(args, dtype, Pass::kScan, device, stream);
}

}  // namespace thalweg::cu
