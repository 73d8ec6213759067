#pragma once

// Both passes of the chunked gated delta rule in one kernel, on Hopper: a block owns 64 kConsumers rows of a head's
// state and goes through the chunks of one sequence. Besides the consumer warpgroups (chunk_walk.h) it has one that
// copies the chunks' tiles and makes their records out of them, in the ring's own memory, a chunk ahead of the
// consumers.
//
// It does the work on a chunk's keys once for each value head and slice of the state instead of once for each key head,
// but no record goes through memory, and there is one launch.

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

// Copies the tiles, makes the records, stores the outputs.
template <class T, int K, int kConsumers>
__device__ void produce_chunks(const ChunkArguments& args, const Work& work, const Ring<K, kConsumers>& ring,
                               ProducerMemory& memory) {
  using R = Ring<K, kConsumers>;
  using Team = ProducerWarpgroup;
  static_assert(R::kStages == 3);
  constexpr int kGateWarp = 2;  // has the gates of the next chunk
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const auto gates_of = [&](int chunk) {
    return load_gates(args, work.row, work.begin + chunk * kChunk, work.length - chunk * kChunk, work.head, lane);
  };
  LaneGates gates{};
  if (warp == kGateWarp) gates = gates_of(0);
  const TileCopies<T, K, kConsumers> tiles{args, work};
  for (int stage = 0; stage < R::kStages; ++stage) tiles.load(ring, stage, stage);
  if (warp == kGateWarp) {
    work_out_decays(gates, memory.heads[0], lane);
    gates = gates_of(1);
  }
  for (int stage = 0; stage < R::kStages; ++stage) {
    clear_upper_blocks<Team::kThreads>(ring.stage_bytes(stage) + R::kRecord, thread);
  }
  int stage = 0;
  for (int chunk = 0; chunk < work.chunks; ++chunk) {
    std::byte* record = ring.stage_bytes(stage) + R::kRecord;
    HeadScalars& head = memory.heads[chunk % 2];
    if (chunk < 2) {
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    fence_proxy_async();
    Team::sync();  // the tiles are there, the chunk's decays too, and nobody reads the matrix any more
    const std::uint32_t place = ring.stage_address(stage);
    float kk[32];
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < K / 16; ++step) {
      const std::uint32_t at = step / 4 * kTile + step % 4 * 32;
      wgmma_shared<T>(kk, describe_rows(place, at), describe_rows(place, at), step > 0);
    }
    wgmma_commit();
    if (chunk == 0 || args.normalize) {
      find_factors<T, K>(args, ring.stage_bytes(stage), ring.stage_bytes(stage) + R::kQueries,
                         work.length - chunk * kChunk, thread, memory.factors);
      Team::sync();
    }
    if (args.normalize) {
      for (int i = thread; i < 3 * kChunk; i += Team::kThreads) {
        head.left[i / kChunk][i % kChunk] *= memory.factors.k[i % kChunk];
      }
      Team::sync();
    }
    // The stage of the chunk before the last one takes the next chunk.
    if (chunk >= 2) {
      const int free = R::after(stage);
      ring.wait_until_done(free);
      tiles.store_output(ring, chunk - 2, free);
      tiles.load(ring, chunk + 1, free);
    }

    // Warp i has row i of the blocks of 16 x 16.
    const RowFactors rows(warp, memory.factors, head, args.scale, lane);
    const BlockDecays<true> diagonal({warp, warp}, memory.factors, head, lane);
    const auto for_each_block = [&](auto action) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const BlockIndex block{warp, j};
        if (j < warp) action(block, BlockDecays<false>(block, memory.factors, head, lane));
        if (j == warp) action(block, diagonal);
      }
    };
    const auto of_block = [](const float(&sum)[32], int j, float(&block)[2][4]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) block[i / 4][i % 4] = sum[8 * j + i];
    };
    wgmma_wait<0>();
    pin(kk);
    for_each_block([&](BlockIndex block, const auto& decays) {
      float products[2][4];
      of_block(kk, block.j, products);
      store_a(products, block, rows, decays, memory.matrix, lane);
    });
    float qk[32];
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < K / 16; ++step) {
      const std::uint32_t at = step / 4 * kTile + step % 4 * 32;
      wgmma_shared<T>(qk, describe_rows(place, R::kQueries + at), describe_rows(place, at), step > 0);
    }
    wgmma_commit();
    Team::sync();
    if (warp < 2) invert_diagonal<false>(memory.matrix, warp, lane);
    wgmma_wait<0>();
    pin(qk);
    for_each_block([&](BlockIndex block, const auto& decays) {
      float products[2][4];
      of_block(qk, block.j, products);
      store_p<T>(products, block, rows, decays, record + ChunkRecord::kP, lane);
    });
    if (warp == kGateWarp) {
      work_out_decays(gates, memory.heads[(chunk + 1) % 2], lane);
      gates = gates_of(chunk + 2);
    }
    if (warp < 2) store_scalars(memory.factors, head, args.scale, record, thread);
    Team::sync();
    merge_blocks_of_16<T, Team>(memory.matrix, head.beta, record + ChunkRecord::kT, thread);
    merge_blocks_of_32<T, Team>(memory.matrix, head.beta, record + ChunkRecord::kT, thread);
    ring.arrive_full(stage);
    stage = R::after(stage);
  }
  for (int chunk = max(0, work.chunks - 2); chunk < work.chunks; ++chunk) {
    ring.wait_until_done(chunk % R::kStages);
    tiles.store_output(ring, chunk, chunk % R::kStages);
  }
}

template <class T, int K, int kConsumers>
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
    produce_chunks<T, K, kConsumers>(args, work, ring, memory);
  } else {
    if constexpr (kFrugal) setmaxnreg_inc<192>();
    consume<T, K, kConsumers, kFrugal>(args, work, ring, static_cast<int>(threadIdx.x) / kWarpgroup - 1);
  }
}

template <class T, int K, int kConsumers>
void launch_fused(const ChunkArguments& args, const DeviceProperties& device, cudaStream_t stream) {
  static constexpr std::string_view kOperation = "chunk_gated_delta_rule";
  constexpr int kBytes = Ring<K, kConsumers>::kSharedBytes;
  allow_shared_memory(reinterpret_cast<const void*>(chunk_fused<T, K, kConsumers>), kBytes, kOperation);
  const dim3 grid(static_cast<unsigned>(args.value_width / (kConsumers * kRows)), static_cast<unsigned>(args.hv),
                  static_cast<unsigned>(args.map.sequences));
  pdl_launch(chunk_fused<T, K, kConsumers>, grid, (kConsumers + 1) * kWarpgroup, kBytes, device, stream, kOperation,
             args);
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
