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
  const std::int64_t pieces = args.segment_chunks > 0 ? args.segments : args.map.sequences;
  // More warps share a block's tiles; but where blocks are few, half as many rows in twice as many are done sooner, and
  // the other warps copy. So they are too where V is not a multiple of what all warps take.
  const std::int64_t blocks = rows / (kAllWarps * kScanWarpRows) * args.hv * pieces;
  const bool half = rows % (kAllWarps * kScanWarpRows) != 0 || 2 * blocks <= device.multiprocessors;
  const int warps = half ? kAllWarps / 2 : kAllWarps;
  const ChunkScanKernel chosen = args.key_width == 64    ? chunk_scan_kernel<64>(dtype)
                                 : args.key_width == 128 ? chunk_scan_kernel<128>(dtype)
                                                         : chunk_scan_kernel<256>(dtype);
  const dim3 grid(static_cast<unsigned>(rows / (warps * kScanWarpRows)), static_cast<unsigned>(args.hv),
                  static_cast<unsigned>(pieces));
  int bytes = chosen.shared_bytes[half ? 0 : 1];
  // Sent while the first pass ends, blocks would crowd on the multiprocessors that are free first. Where there is one
  // for each, asking for more than half of its memory keeps the others away.
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
