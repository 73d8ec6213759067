#pragma once

// Both passes of the chunked gated delta rule in one kernel, on Hopper: no record goes through memory, and there is one
// launch. A block has 64 kConsumers rows of a head's state over the chunks of one sequence, so that the matrices of a
// chunk are computed once for each value head and block instead of once for each key head.
//
// Roles, a warpgroup each:
//   KeyProducts multiplies k k^T and q k^T, makes A of the one, whose diagonal blocks of 16 it inverts, and P of the
//     other, and the scale factors.
//   Inverse makes T of these. Warps of it that have no blocks to merge at first store the diagonal ones, sum the gates
//     of the next but one chunk, and start the copies of tiles and outputs, which the copy engine makes
//     (chunk_boxes_sm90.h).
//   One or two consumers apply the records (chunk_walk_sm90.h).
// Shared memory: a ring of three chunks (chunk_ring_sm90.h), in which T and P are made where they are read; two chunks'
//   matrices A; four chunks' decays, two chunks' norm factors.
// Pipeline: consumers apply a chunk while Inverse has the next one and KeyProducts the one after it. A chunk takes as
//   long as the longest chain of a role (docs/notes/gated-delta-rule-cuda-prefill.md, What a chunk waits for).

#include "cuda/gated_delta/chunk_boxes_sm90.h"
#include "cuda/gated_delta/chunk_choice.h"
#include "cuda/gated_delta/chunk_kernels.h"
#include "cuda/gated_delta/chunk_matrices.h"
#include "cuda/gated_delta/chunk_walk_sm90.h"
#include "cuda/launch.h"

namespace thalweg::cu::sm90 {

// Named barriers; 0 is __syncthreads().
enum : int { kKeyProductsBarrier = 1, kFirstDone = 2, kInverseBarrier = 5, kFirstApplied = 6, kFirstReused = 9 };

// A ring whose k, q and v come, and whose outputs leave, by the copy engine. A stage is full when KeyProducts, Inverse
// and v have arrived. All threads of a warpgroup arrive: of one lane for its warp racecheck sees only that lane's
// accesses.
template <int K, int kConsumers>
struct FusedRing : Ring<K, kConsumers> {
  using Base = Ring<K, kConsumers>;
  static constexpr int kThreads = kConsumers * kWarpgroup + 32;          // the consumers and the warp that copies
  static constexpr int kReusers = kConsumers * kWarpgroup + kWarpgroup;  // and KeyProducts

  struct Barriers {
    typename Base::Barriers ring;
    std::uint64_t keys[Base::kStages];
    std::uint64_t last_values;
    std::uint64_t stored[2];
    std::uint64_t unused[2];
  };
  MbarrierArray keys;    // k and q have arrived
  Mbarrier last_values;  // v of a last chunk that is not whole
  MbarrierArray stored;  // A of chunk i is in matrix i % 2
  MbarrierArray unused;  // matrix i % 2 may be written for chunk i, whose decays are complete

  __device__ FusedRing(std::byte* shared, Barriers& barriers)
      : Base(shared, barriers.ring, 2 * kWarpgroup + 1),
        keys{shared_address(barriers.keys)},
        last_values{shared_address(&barriers.last_values)},
        stored{shared_address(barriers.stored)},
        unused{shared_address(barriers.unused)} {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < Base::kStages; ++stage) keys[stage].init(1);
      last_values.init(1);
      for (int i = 0; i < 2; ++i) {
        stored[i].init(kWarpgroup);
        unused[i].init(kWarpgroup);
      }
      fence_mbarrier_init();
    }
    __syncthreads();
  }
  // k and q of a chunk that is not whole are cleared behind the sequence before it is full.
  __device__ void wait_until_loaded(const Work& work, int chunk, int stage) const {
    if (is_whole(work, chunk)) {
      keys[stage].wait(chunk / Base::kStages % 2);
    } else {
      wait_until_full(chunk, stage);
    }
  }
  __device__ void wait_until_full(int chunk, int stage) const { Base::full[stage].wait(chunk / Base::kStages % 2); }
  __device__ void arrive_full(int stage) const {
    fence_proxy_async();
    Base::full[stage].arrive();
  }
  // The consumers have applied the chunk, but have not written its output. The copying warp waits for that; KeyProducts
  // too, before the scale factors of the chunk in its place. Its keys' arrival implies it, but racecheck cannot see
  // that.
  __device__ void wait_until_applied(int stage) const { named_barrier(kFirstApplied + stage, kThreads); }
  __device__ void wait_until_reused(int stage) const { named_barrier(kFirstReused + stage, kReusers); }
  __device__ void arrive_applied(int stage) const {
    named_barrier_arrive(kFirstApplied + stage, kThreads);
    named_barrier_arrive(kFirstReused + stage, kReusers);
  }
  // They have written it over v.
  __device__ void wait_until_done(int stage) const { named_barrier(kFirstDone + stage, kThreads); }
  __device__ void arrive_done(int stage) const { named_barrier_arrive(kFirstDone + stage, kThreads); }
};

template <int kBarrier>
struct Warpgroup {
  static constexpr int kThreads = kWarpgroup;
  __device__ static void sync() { named_barrier(kBarrier, kThreads); }
};

struct RecordMemory {
  TwoMatrices matrices;   // of chunk i at i % 2
  HeadScalars heads[4];   // of chunk i at i % 4
  KeyFactors factors[2];  // of chunk i at i % 2
};

// A, P and the scale factors of each chunk.
template <class T, int K, int kConsumers>
struct KeyProducts {
  using R = FusedRing<K, kConsumers>;
  using Threads = Warpgroup<kKeyProductsBarrier>;
  static_assert(R::kStages == 3);

  const ChunkArguments& args;
  const Work& work;
  const R& ring;
  RecordMemory& memory;
  const int thread;
  const int warp;
  const int lane;

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

  // The squared norms of the warp's 16 rows of a tile, by the tensor cores: those of rows lane / 4 and 8 + lane / 4 in
  // lanes with on_diagonal().
  __device__ __forceinline__ void square_rows(std::uint32_t tile, float (&squares)[2]) const {
    float blocks[2][4] = {};
    const int row = 16 * warp + lane % 16;
    const std::uint32_t address = tile + swizzled(row, lane / 16);
#pragma unroll
    for (int step = 0; step < K / 16; ++step) {
      std::uint32_t a[4];
      load_blocks(a,
                  (address ^ static_cast<std::uint32_t>(step % 4 * 32)) + static_cast<std::uint32_t>(step / 4 * kTile));
      multiply_add<T>(blocks[0], a, a[0], a[2]);
      multiply_add<T>(blocks[1], a, a[1], a[3]);
    }
    select_diagonal(blocks, squares);
  }
  __device__ __forceinline__ bool on_diagonal() const { return lane % 4 == lane / 8; }
  // From a diagonal block of 16 x 16, [eight][lane's values].
  __device__ __forceinline__ void select_diagonal(const float (&blocks)[2][4], float (&squares)[2]) const {
    squares[0] = lane / 4 % 2 == 0 ? blocks[0][0] : blocks[0][1];
    squares[1] = lane / 4 % 2 == 0 ? blocks[1][2] : blocks[1][3];
  }

  // Stores the norm factors of the chunk: kk is the warp's diagonal block.
  __device__ __forceinline__ void find_norms(int chunk, const float (&q_squares)[2], const float (&kk)[2][4],
                                             KeyFactors& factors) const {
    if (chunk >= 2 && !args.normalize) return;
    float k_squares[2];
    select_diagonal(kk, k_squares);
    if (on_diagonal()) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * warp + 8 * half + lane / 4;
        // A row of zeros past the end of the chunk stays zero.
        const float other = row < work.length - chunk * kChunk ? 1.0F : 0.0F;
        factors.k[row] = args.normalize ? other * rsqrtf(k_squares[half] + args.norm_eps) : 1.0F;
        factors.q[row] = args.normalize ? other * rsqrtf(q_squares[half] + args.norm_eps) : 1.0F;
      }
    }
    Threads::sync();
  }

  // Zeros in place of the tokens behind the sequence.
  __device__ __forceinline__ void clear_keys(int chunk, int stage) const {
    clear_rows(ring.stage_bytes(stage), 2 * K / kTileColumns, work.length - chunk * kChunk, thread);
    Threads::sync();
  }
  __device__ __forceinline__ void clear_values(int chunk, int stage) const {
    ring.last_values.wait(0);
    clear_rows(ring.stage_bytes(stage) + R::kValues, kConsumers, work.length - chunk * kChunk, thread);
    if (thread == 0) ring.full[stage].arrive();  // in place of v
  }

  // The warp's diagonal block of 16 x 16.
  __device__ __forceinline__ void select_block(const float (&sum)[32], float (&block)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      block[i / 4][i % 4] = warp == 0 ? sum[i] : warp == 1 ? sum[8 + i] : warp == 2 ? sum[16 + i] : sum[24 + i];
    }
  }
  // Calls apply(block, index) for the warp's blocks left of the diagonal one.
  template <class Apply>
  __device__ __forceinline__ void for_each_left(float (&sum)[32], Apply apply) const {
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      if (j >= warp) break;
      apply(reinterpret_cast<float(&)[2][4]>(sum[8 * j]), BlockIndex{warp, j});
    }
  }

  // A and P of a chunk whose tiles have arrived.
  __device__ __forceinline__ void multiply(int chunk, int stage, bool whole) {
    HeadScalars& head = memory.heads[chunk % 4];
    KeyFactors& factors = memory.factors[chunk % 2];
    const std::uint32_t address = ring.stage_address(stage);
    const BlockIndex own{warp, warp};
    // With one consumer there are registers for both products at once.
    constexpr bool kTogether = kConsumers == 1;
    float sum[32];
    float products[32];
    multiply_keys(sum, address, 0);
    if constexpr (kTogether) multiply_keys(products, address, R::kQueries);
    float q_squares[2] = {};
    if (args.normalize) square_rows(address + R::kQueries, q_squares);
    ring.unused[chunk % 2].wait(chunk / 2 % 2);
    RowFactors rows(warp, head, args.scale, lane);
    BlockDecays<true> diagonal(own, head, lane);
    wgmma_wait<kTogether ? 1 : 0>();
    pin(sum);
    float block[2][4];
    select_block(sum, block);
    find_norms(chunk, q_squares, block, factors);
    rows.multiply_rows(factors, warp, lane);
    diagonal.multiply_columns(factors, warp, lane);
    const BlockMatrix matrix = memory.matrices[chunk % 2];
    scale_a(block, rows, diagonal, lane);
    store_block(matrix, own, block, lane);
    static_assert(HeadScalars::kLeft == 3 * 32);
    if (warp < 3) head.left[thread] *= factors.k[HeadScalars::left_column(thread)];
    Threads::sync();
    for_each_left(sum, [&](float(&a)[2][4], BlockIndex index) {
      scale_a(a, rows, BlockDecays<false>(index, head, lane), lane);
      store_block(matrix, index, a, lane);
    });
    // By the warps with the fewest blocks.
    if (warp < 2) invert_diagonal(matrix, 2 - 2 * warp, lane);
    ring.stored[chunk % 2].arrive();

    if constexpr (!kTogether) multiply_keys(products, address, R::kQueries);
    std::byte* const record = ring.stage_bytes(stage) + R::kRecord;
    if (chunk >= R::kStages) ring.wait_until_reused(stage);
    if (warp < 2) {
#pragma unroll
      for (const bool of_k : {true, false}) store_scalars(factors, head, args.scale, record, thread, of_k);
    }
    wgmma_wait<0>();
    pin(products);
    // What consumers make of an old P in a chunk without output is not stored. One consumer's sequences are not split.
    if (kTogether || chunk >= work.warmup) {
      std::byte* tile = record + ChunkRecord::kP;
      select_block(products, block);
      store_p<T>(block, own, rows, diagonal, tile, lane);
      for_each_left(products, [&](const float(&qk)[2][4], BlockIndex index) {
        store_p<T>(qk, index, rows, BlockDecays<false>(index, head, lane), tile, lane);
      });
    }
    if (!whole) clear_values(chunk, stage);
    ring.arrive_full(stage);
  }

  __device__ __forceinline__ void run() {
    int stage = 0;
    for (int chunk = 0; chunk < work.chunks; ++chunk) {
      // Opaque, so that no addresses are kept over the loop.
      const int same = opaque(thread);
      KeyProducts role{args, work, ring, memory, same, warp_of(same), same % 32};
      const bool whole = is_whole(work, chunk);
      ring.keys[stage].wait(chunk / R::kStages % 2);
      if (!whole) clear_keys(chunk, stage);
      role.multiply(chunk, stage, whole);
      stage = R::after(stage);
    }
    // Every arrival has a wait: consumers need not know which chunks are the last.
    for (int chunk = work.chunks; chunk < work.chunks + R::kStages; ++chunk) {
      if (chunk >= R::kStages) ring.wait_until_reused(stage);
      stage = R::after(stage);
    }
  }
};

// T of each chunk; decays and copies.
template <class T, int K, int kConsumers>
struct Inverse {
  using R = FusedRing<K, kConsumers>;
  using Boxes = TileBoxes<K, kConsumers>;
  using Threads = Warpgroup<kInverseBarrier>;

  const ChunkArguments& args;
  const Work& work;
  const R& ring;
  RecordMemory& memory;
  const Boxes boxes;
  const int thread;
  const int warp;
  const int lane;

  __device__ __forceinline__ LaneGates gates_of(int chunk) const {
    return load_gates(args, opaque(work.row), work.begin + chunk * kChunk, work.length - chunk * kChunk,
                      opaque(work.head), opaque(thread) % 32);
  }

  __device__ __forceinline__ void load_keys(int chunk, int stage) const {
    if (lane != 0 || chunk >= work.chunks) return;
    ring.keys[stage].arrive_expect_tx(Boxes::kKeyBytes);
    boxes.load_keys(ring.stage_address(stage), chunk, ring.keys[stage]);
  }
  __device__ __forceinline__ void load_values(int chunk, int stage) const {
    if (lane != 0 || chunk >= work.chunks) return;
    const Mbarrier barrier = is_whole(work, chunk) ? ring.full[stage] : ring.last_values;
    barrier.arrive_expect_tx(Boxes::kValueBytes);
    boxes.load_values(ring.stage_address(stage), chunk, barrier);
  }
  // Consumers store f32 outputs themselves.
  __device__ __forceinline__ bool has_output(int chunk) const { return !args.o_is_f32 && chunk >= work.warmup; }
  // Stores the output of a chunk.
  __device__ __forceinline__ void store_output(int chunk, int stage) const {
    ring.wait_until_done(stage);
    if (!has_output(chunk)) return;
    if (!is_whole(work, chunk)) {
      store_rows<T>(args, work, ring.stage_bytes(stage) + R::kValues, kConsumers, chunk);
    } else if (lane == 0) {
      boxes.store_output(ring.stage_address(stage) + R::kValues, chunk);
    }
  }

  // Loads v of a chunk, where the output of the third one before it was, and stores the output of the one after that.
  __device__ __forceinline__ void copy_values(int chunk, int stage) const {
    if (chunk >= R::kStages) {
      if (lane == 0) Boxes::finish_stores();
      load_values(chunk, stage);
    }
    if (chunk >= 2) store_output(chunk - 2, R::after(stage));
  }

  __device__ __forceinline__ void run() {
    // At first two warps merge blocks of 16. Of the others one has the gates of the next but one chunk, one the copies.
    constexpr int kGateWarp = 2;
    constexpr int kCopyWarp = 3;
    if (warp == 0) {
      for (int stage = 0; stage < R::kStages; ++stage) {
        load_keys(stage, stage);
        load_values(stage, stage);
      }
    }
    if (warp >= kGateWarp) {
      HeadScalars& head = memory.heads[warp - kGateWarp];
      sum_gates(gates_of(warp - kGateWarp), head, lane);
      compute_decays(head, lane);
    }
    for (int i = 0; i < 2; ++i) ring.unused[i].arrive();
    LaneGates gates{};
    if (warp == kGateWarp) gates = gates_of(2);
    for (int stage = 0; stage < R::kStages; ++stage) {
      clear_upper_blocks<Threads::kThreads>(ring.stage_bytes(stage) + R::kRecord, thread);
    }
    int stage = 0;
    for (int chunk = 0; chunk < work.chunks; ++chunk) {
      std::byte* record = ring.stage_bytes(stage) + R::kRecord;
      const float* beta = memory.heads[chunk % 4].beta;
      const BlockMatrix matrix = memory.matrices[chunk % 2];
      std::byte* tile = record + ChunkRecord::kT;
      if (warp == kCopyWarp) copy_values(chunk, stage);
      ring.stored[chunk % 2].wait(chunk / 2 % 2);
      if (warp < kGateWarp) {
        merge_blocks_of_16<T>(matrix, beta, tile, warp, opaque(thread) % 32);
      } else {
        if (warp == kGateWarp) sum_gates(gates, memory.heads[(chunk + 2) % 4], opaque(thread) % 32);
#pragma unroll
        for (int i = 0; i < 2; ++i) store_diagonal<T>(matrix, beta, tile, 2 * (warp - 2) + i, opaque(thread) % 32);
      }
      Threads::sync();
      if (warp == kGateWarp) gates = gates_of(chunk + 3);
      // Opaque, so that no addresses are kept over the loop.
      merge_blocks_of_32<T>(matrix, beta, tile, warp, opaque(thread) % 32);
      ring.arrive_full(stage);
      if (warp == kGateWarp) compute_decays(memory.heads[(chunk + 2) % 4], opaque(thread) % 32);
      ring.unused[chunk % 2].arrive();
      if (warp == kCopyWarp && chunk >= 1) {
        const int before = R::after(R::after(stage));  // of the previous chunk
        ring.wait_until_applied(before);
        load_keys(chunk + 2, before);
      }
      stage = R::after(stage);
    }
    if (warp != kCopyWarp) return;
    for (int chunk = max(0, work.chunks - 2); chunk < work.chunks; ++chunk) {
      const int last = chunk % R::kStages;
      if (chunk == work.chunks - 1) ring.wait_until_applied(last);
      store_output(chunk, last);
    }
    if (lane == 0) Boxes::finish_stores();
  }
};

template <class T, int K, int kConsumers, bool kPlain>
__global__ void __launch_bounds__((kConsumers + 2) * kWarpgroup, 1)
    chunk_fused(const __grid_constant__ ChunkArguments args, const __grid_constant__ ChunkMaps maps, const Pass pass) {
  using R = FusedRing<K, kConsumers>;
  extern __shared__ __align__(1024) std::byte shared[];
  __shared__ typename R::Barriers barriers;
  __shared__ __align__(16) RecordMemory memory;
  const R ring(shared, barriers);
  if (threadIdx.x == 0) TileBoxes<K, kConsumers>::prefetch(maps);
  if (!begin_chosen(args)) return;
  // With two consumers all of a multiprocessor's registers are taken.
  constexpr bool kFrugal = kConsumers == 2;
  const auto run = [&](const Work& work) {
    if (!work.valid) return;
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    if (threadIdx.x < kWarpgroup) {
      setmaxnreg_dec<kFrugal ? 72 : 136>();
      KeyProducts<T, K, kConsumers>{args, work, ring, memory, thread, thread / 32, thread % 32}.run();
    } else if (threadIdx.x < 2 * kWarpgroup) {
      setmaxnreg_dec<kFrugal ? 56 : 136>();
      Inverse<T, K, kConsumers>{args, work, ring, memory, {maps, work}, thread, warp_of(thread), thread % 32}.run();
    } else {
      setmaxnreg_inc<kFrugal ? 192 : 232>();
      consume<T, K, kFrugal, kPlain>(args, work, ring, static_cast<int>(threadIdx.x) / kWarpgroup - 2);
    }
  };
  const auto find = [&] { return find_work(args, pass, kConsumers * kRows); };
  if constexpr (kFrugal) {
    __shared__ Work work;
    if (threadIdx.x < 32) {
      const Work found = find();
      if (threadIdx.x == 0) work = found;
    }
    __syncthreads();
    run(work);
  } else {
    run(find());
  }
}

template <class T, int K, int kConsumers, bool kPlain>
void launch_fused(const ChunkArguments& args, Pass pass, const DeviceProperties& device, cudaStream_t stream) {
  static constexpr std::string_view kOperation = "chunk_gated_delta_rule";
  constexpr int kBytes = Ring<K, kConsumers>::kSharedBytes;
  allow_shared_memory(reinterpret_cast<const void*>(chunk_fused<T, K, kConsumers, kPlain>), kBytes, kOperation);
  const int rows = args.value_width + (pass == Pass::kCarries ? args.key_width : 0);
  const std::int64_t walks = pass == Pass::kCarries ? args.segments : args.walks;
  const dim3 grid(static_cast<unsigned>(rows / (kConsumers * kRows)), static_cast<unsigned>(args.hv),
                  static_cast<unsigned>(walks));
  pdl_launch(chunk_fused<T, K, kConsumers, kPlain>, grid, (kConsumers + 2) * kWarpgroup, kBytes, device, stream,
             kOperation, args, make_chunk_maps(args, kConsumers), pass);
}

template <class T, int K, int kConsumers>
void launch_fused(const ChunkArguments& args, Pass pass, const DeviceProperties& device, cudaStream_t stream) {
  is_plain(args) ? launch_fused<T, K, kConsumers, true>(args, pass, device, stream)
                 : launch_fused<T, K, kConsumers, false>(args, pass, device, stream);
}

template <class T>
void launch_fused(const ChunkArguments& args, int consumers, Pass pass, const DeviceProperties& device,
                  cudaStream_t stream) {
  const bool pairs = consumers == 2;
  if (args.key_width == 128) {
    pairs ? launch_fused<T, 128, 2>(args, pass, device, stream) : launch_fused<T, 128, 1>(args, pass, device, stream);
  } else {
    pairs ? launch_fused<T, 64, 2>(args, pass, device, stream) : launch_fused<T, 64, 1>(args, pass, device, stream);
  }
}

}  // namespace thalweg::cu::sm90
