// Second pass of the chunked gated delta rule on Hopper. A block has 64 kConsumers rows of one head's state S [V,K]
// over the chunks of a sequence or segment.
//
// Roles: of warpgroup 0 one warp loads tiles and records into the ring and one stores the outputs, both by the copy
//   engine; the other warpgroups are consumers with 64 rows each (chunk_scan_sm90.h).
// Shared memory: a ring of three chunks (chunk_ring_sm90.h), the output of one.
// Pipeline: loads are up to three chunks ahead; consumers write a chunk's output during the next chunk.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/chunk_kernels.h"
#include "cuda/gated_delta/chunk_scan_sm90.h"
#include "cuda/launch.h"

namespace thalweg::cu::sm90 {
namespace {

template <class T, int K, int kConsumers, bool kPlain>
__global__ void __launch_bounds__((kConsumers + 1) * kWarpgroup, 1)
    chunk_scan(const __grid_constant__ ChunkArguments args, const __grid_constant__ ChunkMaps maps, const Pass pass) {
  extern __shared__ __align__(1024) std::byte shared[];
  __shared__ typename ScanRing<K, kConsumers>::Barriers barriers;
  __shared__ Work work;
  const ScanRing<K, kConsumers> ring(shared, barriers);
  if (threadIdx.x == 0) TileBoxes<K, kConsumers>::prefetch(maps);
  pdl_trigger_and_wait();
  if (threadIdx.x < 32) {
    const Work found = find_work(args, pass, kConsumers * kRows);
    if (threadIdx.x == 0) work = found;
  }
  __syncthreads();
  if (!work.valid) return;
  if (threadIdx.x < kWarpgroup) {
    if constexpr (kConsumers == 2) setmaxnreg_dec<40>();
    if (threadIdx.x == 0) load_chunks(args, maps, work, ring);
    if (threadIdx.x / 32 == 1) store_outputs<T>(args, maps, work, ring, static_cast<int>(threadIdx.x) % 32);
  } else {
    if constexpr (kConsumers == 2) setmaxnreg_inc<232>();
    scan_chunks<T, K, kPlain>(args, work, ring, static_cast<int>(threadIdx.x) / kWarpgroup - 1);
  }
}

template <class T, int K, int kConsumers, bool kPlain>
void launch(const ChunkArguments& args, Pass pass, const DeviceProperties& device, cudaStream_t stream) {
  static constexpr std::string_view kOperation = "chunk_gated_delta_rule";
  constexpr int kBytes = ScanRing<K, kConsumers>::kSharedBytes;
  allow_shared_memory(reinterpret_cast<const void*>(chunk_scan<T, K, kConsumers, kPlain>), kBytes, kOperation);
  const int rows = args.value_width + (pass == Pass::kCarries ? args.key_width : 0);
  const std::int64_t walks = pass == Pass::kCarries ? args.segments : args.walks;
  const dim3 grid(static_cast<unsigned>(rows / (kConsumers * kRows)), static_cast<unsigned>(args.hv),
                  static_cast<unsigned>(walks));
  pdl_launch(chunk_scan<T, K, kConsumers, kPlain>, grid, (kConsumers + 1) * kWarpgroup, kBytes, device, stream,
             kOperation, args, make_chunk_maps(args, kConsumers), pass);
}

template <class T, int K, int kConsumers>
void launch(const ChunkArguments& args, Pass pass, const DeviceProperties& device, cudaStream_t stream) {
  is_plain(args) ? launch<T, K, kConsumers, true>(args, pass, device, stream)
                 : launch<T, K, kConsumers, false>(args, pass, device, stream);
}

template <class T, int K>
void launch(const ChunkArguments& args, Pass pass, const DeviceProperties& device, cudaStream_t stream) {
  // Two consumers share a block's tiles. With few blocks, one consumer each on more multiprocessors is faster.
  const std::int64_t walks = pass == Pass::kCarries ? args.segments : args.walks;
  const std::int64_t blocks = static_cast<std::int64_t>(args.value_width / kRows) * args.hv * walks;
  if (pass == Pass::kScan && args.value_width % (2 * kRows) == 0 && blocks > device.multiprocessors) {
    launch<T, K, 2>(args, pass, device, stream);
  } else {
    launch<T, K, 1>(args, pass, device, stream);
  }
}

void launch(const ChunkArguments& args, DType dtype, Pass pass, const DeviceProperties& device, cudaStream_t stream) {
  if (dtype == DType::kBF16) {
    args.key_width == 128 ? launch<__nv_bfloat16, 128>(args, pass, device, stream)
                          : launch<__nv_bfloat16, 64>(args, pass, device, stream);
  } else {
    args.key_width == 128 ? launch<__half, 128>(args, pass, device, stream)
                          : launch<__half, 64>(args, pass, device, stream);
  }
}

}  // namespace

void launch_chunk_carries(const ChunkArguments& args, DType dtype, const DeviceProperties& device,
                          cudaStream_t stream) {
  launch(args, dtype, Pass::kCarries, device, stream);
}

void launch_chunk_scan(const ChunkArguments& args, DType dtype, const DeviceProperties& device, cudaStream_t stream) {
  launch(args, dtype, Pass::kScan, device, stream);
}

}  // namespace thalweg::cu::sm90
