// Second pass of the chunked gated delta rule on Hopper. A block has 64 kConsumers rows of one head's state S [V,K]
// over the chunks of a sequence or segment.
//
// Roles: warpgroup 0 is the producer, which copies tiles and records into the ring and outputs out of it; the other
//   warpgroups are consumers with 64 rows each (chunk_walk_sm90.h).
// Shared memory: a ring of three chunks (chunk_ring_sm90.h).
// Pipeline: the producer is up to three chunks ahead; consumers store a chunk's output during the next chunk.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/chunk_kernels.h"
#include "cuda/gated_delta/chunk_walk_sm90.h"
#include "cuda/launch.h"

namespace thalweg::cu::sm90 {
namespace {

template <class T, int K, int kConsumers>
__device__ void copy_chunks(const ChunkArguments& args, const Work& work, const Ring<K, kConsumers>& ring) {
  using R = Ring<K, kConsumers>;
  static_assert(R::kStages == 3);
  const std::byte* record = work.records;
  const std::int64_t record_step = static_cast<std::int64_t>(args.hv) * ChunkRecord::kPitch;
  const TileCopies<T, K, kConsumers> tiles{args, work};
  const auto load = [&](int chunk, int stage) {
    if (chunk < work.chunks) {
      if (threadIdx.x == 0) {
        ring.full[stage].arrive_expect_tx(ChunkRecord::kBytes);
        bulk_copy(ring.stage_address(stage) + R::kRecord, record, ChunkRecord::kBytes, ring.full[stage]);
      }
      record += record_step;
    }
    tiles.load(ring, chunk, stage);
  };
  for (int stage = 0; stage < R::kStages; ++stage) load(stage, stage);
  wait_for_copies<2>();
  if (work.chunks > 0) ring.arrive_full(0);
  int stage = 0;
  for (int chunk = 0; chunk < work.chunks; ++chunk) {
    const int next = R::after(stage);
    wait_for_copies<1>();
    if (chunk + 1 < work.chunks) ring.arrive_full(next);
    ring.wait_until_done(stage);
    tiles.store_output(ring, chunk, stage);
    load(chunk + R::kStages, stage);
    stage = next;
  }
}

template <class T, int K, int kConsumers, bool kPlain>
__global__ void __launch_bounds__((kConsumers + 1) * kWarpgroup, 1)
    chunk_scan(const __grid_constant__ ChunkArguments args, const Pass pass) {
  using R = Ring<K, kConsumers>;
  extern __shared__ __align__(1024) std::byte shared[];
  __shared__ typename R::Barriers barriers;
  const R ring(shared, barriers, kWarpgroup + 1);
  pdl_trigger_and_wait();
  const Work work = find_work(args, pass, kConsumers * kRows);
  if (!work.valid) return;
  if (threadIdx.x < kWarpgroup) {
    if constexpr (kConsumers == 2) setmaxnreg_dec<40>();
    copy_chunks<T, K, kConsumers>(args, work, ring);
  } else {
    if constexpr (kConsumers == 2) setmaxnreg_inc<232>();
    consume<T, K, false, kPlain>(args, work, ring, static_cast<int>(threadIdx.x) / kWarpgroup - 1);
  }
}

template <class T, int K, int kConsumers, bool kPlain>
void launch(const ChunkArguments& args, Pass pass, const DeviceProperties& device, cudaStream_t stream) {
  static constexpr std::string_view kOperation = "chunk_gated_delta_rule";
  constexpr int kBytes = Ring<K, kConsumers>::kSharedBytes;
  allow_shared_memory(reinterpret_cast<const void*>(chunk_scan<T, K, kConsumers, kPlain>), kBytes, kOperation);
  const int rows = args.value_width + (pass == Pass::kCarries ? args.key_width : 0);
  const std::int64_t walks = pass == Pass::kCarries ? args.segments : args.walks;
  const dim3 grid(static_cast<unsigned>(rows / (kConsumers * kRows)), static_cast<unsigned>(args.hv),
                  static_cast<unsigned>(walks));
  pdl_launch(chunk_scan<T, K, kConsumers, kPlain>, grid, (kConsumers + 1) * kWarpgroup, kBytes, device, stream,
             kOperation, args, pass);
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
