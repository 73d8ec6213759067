#pragma once

// Both passes of the chunked gated delta rule in one kernel, on Hopper: no record goes through memory, and there is one
// launch. A block has 64 kConsumers rows of a head's state over the chunks of one sequence, so that the matrices of a
// chunk are computed once for each value head and block instead of once for each key head.
//
// Roles: warpgroup 0 is the producer, which copies tiles, computes records in the ring's own memory, and stores
//   outputs; its third warp computes gates and decays. The other warpgroups are consumers (chunk_walk_sm90.h).
// Shared memory: a ring of three chunks (chunk_ring_sm90.h), the matrix A, two chunks' decays, norm factors.
// Pipeline: the producer makes records one chunk ahead of the consumers and has copies of one more chunk in flight.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/chunk_kernels.h"
#include "cuda/gated_delta/chunk_matrices.h"
#include "cuda/gated_delta/chunk_walk_sm90.h"
#include "cuda/launch.h"

namespace thalweg::cu::sm90 {

struct ProducerWarpgroup {
  static constexpr int kThreads = kWarpgroup;
  __device__ static void sync() { named_barrier(1, kThreads); }
};

struct ProducerMemory {
  float matrix[kMatrixFloats];
  HeadScalars heads[2];  // of even and of odd chunks
  KeyFactors factors;
};

// The producer warpgroup.
template <class T, int K, int kConsumers>
struct Producer {
  using R = Ring<K, kConsumers>;
  using Threads = ProducerWarpgroup;
  static_assert(R::kStages == 3);
  static constexpr int kGateWarp = 2;  // has the gates of the next chunk

  const ChunkArguments& args;
  const Work& work;
  const R& ring;
  ProducerMemory& memory;
  const TileCopies<T, K, kConsumers> tiles;
  const int thread;
  const int warp;
  const int lane;
  LaneGates gates;  // of kGateWarp

  __device__ __forceinline__ LaneGates gates_of(int chunk) const {
    return load_gates(args, work.row, work.begin + chunk * kChunk, work.length - chunk * kChunk, work.head, lane);
  }

  // Before the first chunk: the gates of the first two, the copies of the first three.
  __device__ __forceinline__ void begin() {
    if (warp == kGateWarp) gates = gates_of(0);
    for (int stage = 0; stage < R::kStages; ++stage) tiles.load(ring, stage, stage);
    if (warp == kGateWarp) {
      compute_decays(gates, memory.heads[0], lane);
      gates = gates_of(1);
    }
    for (int stage = 0; stage < R::kStages; ++stage) {
      clear_upper_blocks<Threads::kThreads>(ring.stage_bytes(stage) + R::kRecord, thread);
    }
  }

  // Starts sum[64,64] = k k^T, or q k^T with the offset of q in the stage.
  __device__ __forceinline__ void multiply_keys(float (&sum)[32], std::uint32_t stage, std::uint32_t offset) const {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < K / 16; ++step) {
      const std::uint32_t at = step / 4 * kTile + step % 4 * 32;
      wgmma_shared<T>(sum, describe_rows(stage, offset + at), describe_rows(stage, at), step > 0);
    }
    wgmma_commit();
  }

  // The norm factors of the chunk, which also multiply the decays left of the diagonal blocks.
  __device__ __forceinline__ void apply_norm(int chunk, int stage, HeadScalars& head) const {
    if (chunk == 0 || args.normalize) {
      find_factors<T, K>(args, ring.stage_bytes(stage), ring.stage_bytes(stage) + R::kQueries,
                         work.length - chunk * kChunk, thread, memory.factors);
      Threads::sync();
    }
    if (args.normalize) {
      for (int i = thread; i < 3 * kChunk; i += Threads::kThreads) {
        head.left[i / kChunk][i % kChunk] *= memory.factors.k[i % kChunk];
      }
      Threads::sync();
    }
  }

  // Stores the output of the chunk before the last one, whose stage takes the next chunk.
  __device__ __forceinline__ void reuse_stage(int chunk, int stage) const {
    if (chunk < 2) return;
    const int free = R::after(stage);
    ring.wait_until_done(free);
    tiles.store_output(ring, chunk - 2, free);
    tiles.load(ring, chunk + 1, free);
  }

  // Calls store(products, index, decays) for the warp's row of blocks of 16 x 16, on and left of the diagonal.
  template <class Store>
  __device__ __forceinline__ void for_each_block(const float (&sum)[32], const BlockDecays<true>& diagonal,
                                                 const HeadScalars& head, Store store) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const BlockIndex block{warp, j};
      float products[2][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) products[i / 4][i % 4] = sum[8 * j + i];
      if (j < warp) store(products, block, BlockDecays<false>(block, memory.factors, head, lane));
      if (j == warp) store(products, block, diagonal);
    }
  }

  // Makes the record of a chunk whose tiles have arrived.
  __device__ __forceinline__ void make_record(int chunk, int stage) {
    std::byte* record = ring.stage_bytes(stage) + R::kRecord;
    HeadScalars& head = memory.heads[chunk % 2];
    const std::uint32_t address = ring.stage_address(stage);
    float kk[32];
    multiply_keys(kk, address, 0);
    apply_norm(chunk, stage, head);
    reuse_stage(chunk, stage);

    const RowFactors rows(warp, memory.factors, head, args.scale, lane);
    const BlockDecays<true> diagonal({warp, warp}, memory.factors, head, lane);
    wgmma_wait<0>();
    pin(kk);
    for_each_block(kk, diagonal, head, [&](const auto& products, BlockIndex block, const auto& decays) {
      store_a(products, block, rows, decays, memory.matrix, lane);
    });
    float qk[32];
    multiply_keys(qk, address, R::kQueries);
    Threads::sync();
    if (warp < 2) invert_diagonal<false>(memory.matrix, warp, lane);
    wgmma_wait<0>();
    pin(qk);
    for_each_block(qk, diagonal, head, [&](const auto& products, BlockIndex block, const auto& decays) {
      store_p<T>(products, block, rows, decays, record + ChunkRecord::kP, lane);
    });
    if (warp == kGateWarp) {
      compute_decays(gates, memory.heads[(chunk + 1) % 2], lane);
      gates = gates_of(chunk + 2);
    }
    if (warp < 2) store_scalars(memory.factors, head, args.scale, record, thread);
    Threads::sync();
    merge_blocks_of_16<T, Threads>(memory.matrix, head.beta, record + ChunkRecord::kT, thread);
    merge_blocks_of_32<T, Threads>(memory.matrix, head.beta, record + ChunkRecord::kT, thread);
  }

  __device__ __forceinline__ void run() {
    begin();
    int stage = 0;
    for (int chunk = 0; chunk < work.chunks; ++chunk) {
      if (chunk < 2) {
        wait_for_copies<1>();
      } else {
        wait_for_copies<0>();
      }
      fence_proxy_async();
      Threads::sync();  // the tiles and the chunk's decays are complete, and no thread reads the matrix any more
      make_record(chunk, stage);
      ring.arrive_full(stage);
      stage = R::after(stage);
    }
    for (int chunk = max(0, work.chunks - 2); chunk < work.chunks; ++chunk) {
      ring.wait_until_done(chunk % R::kStages);
      tiles.store_output(ring, chunk, chunk % R::kStages);
    }
  }
};

template <class T, int K, int kConsumers, bool kPlain>
__global__ void __launch_bounds__((kConsumers + 1) * kWarpgroup, 1)
    chunk_fused(const __grid_constant__ ChunkArguments args) {
  using R = Ring<K, kConsumers>;
  extern __shared__ __align__(1024) std::byte shared[];
  __shared__ typename R::Barriers barriers;
  __shared__ __align__(16) ProducerMemory memory;
  const R ring(shared, barriers, kWarpgroup);
  pdl_trigger_and_wait();
  const Work work = find_work(args, Pass::kScan, kConsumers * kRows);
  if (!work.valid) return;
  // With two consumers all of a multiprocessor's registers are taken.
  constexpr bool kFrugal = kConsumers == 2;
  if (threadIdx.x < kWarpgroup) {
    if constexpr (kFrugal) setmaxnreg_dec<120>();
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    Producer<T, K, kConsumers> producer{args, work, ring, memory, {args, work}, thread, thread / 32, thread % 32, {}};
    producer.run();
  } else {
    if constexpr (kFrugal) setmaxnreg_inc<192>();
    consume<T, K, kConsumers, kFrugal, kPlain>(args, work, ring, static_cast<int>(threadIdx.x) / kWarpgroup - 1);
  }
}

template <class T, int K, int kConsumers, bool kPlain>
void launch_fused(const ChunkArguments& args, const DeviceProperties& device, cudaStream_t stream) {
  static constexpr std::string_view kOperation = "chunk_gated_delta_rule";
  constexpr int kBytes = Ring<K, kConsumers>::kSharedBytes;
  allow_shared_memory(reinterpret_cast<const void*>(chunk_fused<T, K, kConsumers, kPlain>), kBytes, kOperation);
  const dim3 grid(static_cast<unsigned>(args.value_width / (kConsumers * kRows)), static_cast<unsigned>(args.hv),
                  static_cast<unsigned>(args.map.sequences));
  pdl_launch(chunk_fused<T, K, kConsumers, kPlain>, grid, (kConsumers + 1) * kWarpgroup, kBytes, device, stream,
             kOperation, args);
}

template <class T, int K, int kConsumers>
void launch_fused(const ChunkArguments& args, const DeviceProperties& device, cudaStream_t stream) {
  is_plain(args) ? launch_fused<T, K, kConsumers, true>(args, device, stream)
                 : launch_fused<T, K, kConsumers, false>(args, device, stream);
}

template <class T>
void launch_fused(const ChunkArguments& args, int consumers, const DeviceProperties& device, cudaStream_t stream) {
  const bool pairs = consumers == 2;
  if (args.key_width == 128) {
    pairs ? launch_fused<T, 128, 2>(args, device, stream) : launch_fused<T, 128, 1>(args, device, stream);
  } else {
    pairs ? launch_fused<T, 64, 2>(args, device, stream) : launch_fused<T, 64, 1>(args, device, stream);
  }
}

}  // namespace thalweg::cu::sm90
