// Second pass of the chunked gated delta rule on Hopper: walks through a sequence with the state in registers
// (chunk_walk.h).
//
// A block owns 64 kGroups rows of one head's state S [V,K], 64 per consumer warpgroup, and goes through the chunks of
// one sequence. One more warpgroup copies the chunks' tiles and records into a ring of shared memory ahead of them, and
// the outputs from there to their place.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/chunk_kernels.h"
#include "cuda/gated_delta/chunk_walk_sm90.h"
#include "cuda/launch.h"

namespace thalweg::cu::sm90 {
namespace {

template <class T, int K, int kGroups>
__device__ void copy_chunks(const ChunkArguments& args, const Work& work, const Ring<K, kGroups>& ring) {
  using R = Ring<K, kGroups>;
  static_assert(R::kStages == 3);
  const std::byte* record = work.records;
  const std::int64_t record_step = static_cast<std::int64_t>(args.hv) * ChunkRecord::kPitch;
  const TileCopies<T, K, kGroups> tiles{args, work};
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

template <class T, int K, int kGroups>
__global__ void __launch_bounds__((kGroups + 1) * kWarpgroup, 1)
    chunk_scan(const __grid_constant__ ChunkArguments args, const Pass pass) {
  using R = Ring<K, kGroups>;
  extern __shared__ __align__(1024) std::byte shared[];
  __shared__ typename R::Barriers barriers;
  const R ring(shared, barriers, kWarpgroup + 1);
  pdl_trigger_and_wait();
  const Work work = find_work(args, pass, kGroups * kRows);
  if (!work.valid) return;
  if (threadIdx.x < kWarpgroup) {
    if constexpr (kGroups == 2) setmaxnreg_dec<40>();
    copy_chunks<T, K, kGroups>(args, work, ring);
  } else {
    if constexpr (kGroups == 2) setmaxnreg_inc<232>();
    consume<T, K, kGroups, false>(args, work, ring, static_cast<int>(threadIdx.x) / kWarpgroup - 1);
  }
}

template <class T, int K, int kGroups>
void launch(const ChunkArguments& args, Pass pass, const DeviceProperties& device, cudaStream_t stream) {
  static constexpr std::string_view kOperation = "chunk_gated_delta_rule";
  constexpr int kBytes = Ring<K, kGroups>::kSharedBytes;
  allow_shared_memory(reinterpret_cast<const void*>(chunk_scan<T, K, kGroups>), kBytes, kOperation);
  const int rows = args.value_width + (pass == Pass::kCarries ? args.key_width : 0);
  const std::int64_t pieces = args.segment_chunks > 0 ? args.segments : args.map.sequences;
  const dim3 grid(static_cast<unsigned>(rows / (kGroups * kRows)), static_cast<unsigned>(args.hv),
                  static_cast<unsigned>(pieces));
  pdl_launch(chunk_scan<T, K, kGroups>, grid, (kGroups + 1) * kWarpgroup, kBytes, device, stream, kOperation, args,
             pass);
}

template <class T, int K>
void launch(const ChunkArguments& args, Pass pass, const DeviceProperties& device, cudaStream_t stream) {
  // Two warpgroups share a block's tiles; with few heads, one each on more multiprocessors is faster.
  const std::int64_t pieces = args.segment_chunks > 0 ? args.segments : args.map.sequences;
  const std::int64_t blocks = static_cast<std::int64_t>(args.value_width / kRows) * args.hv * pieces;
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
