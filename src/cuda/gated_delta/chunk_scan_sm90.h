#pragma once

// The second pass's ring, the warps that copy, and a consumer warpgroup, which applies a run of chunks to 64 rows of
// S [V,K] (chunk_walk_sm90.h has the formulas).

#include "cuda/common/wgmma.h"
#include "cuda/gated_delta/chunk_boxes_sm90.h"
#include "cuda/gated_delta/chunk_walk_sm90.h"
#include "cuda/gated_delta/state_rows.h"

namespace thalweg::cu::sm90 {

// A ring that the copy engine fills. Outputs have a place of their own, so that a stage is loaded again as soon as its
// chunk has been applied.
template <int K, int kConsumers>
struct ScanRing : Ring<K, kConsumers> {
  using Base = Ring<K, kConsumers>;
  static constexpr int kThreads = kConsumers * kWarpgroup;  // consumers
  static constexpr int kOutput = Base::kBytes;
  static constexpr int kSharedBytes = Base::kSharedBytes + kConsumers * kTile;

  struct Barriers {
    typename Base::Barriers ring;
    std::uint64_t applied[Base::kStages];
    std::uint64_t written;
    std::uint64_t stored;
  };
  MbarrierArray applied;
  Mbarrier written;  // the output is in its place
  Mbarrier stored;   // and has been read from there

  __device__ ScanRing(std::byte* shared, Barriers& barriers)
      : Base(shared, barriers.ring, 1),
        applied{uniform(shared_address(barriers.applied))},
        written{uniform(shared_address(&barriers.written))},
        stored{uniform(shared_address(&barriers.stored))} {
    Base::full.address = uniform(Base::full.address);
    Base::address = uniform(Base::address);
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < Base::kStages; ++stage) applied[stage].init(kThreads);
      written.init(kThreads);
      stored.init(1);
      fence_mbarrier_init();
    }
    __syncthreads();
  }
};

// By one thread: copies all chunks into the ring.
template <int K, int kConsumers>
__device__ void load_chunks(const ChunkArguments& args, const ChunkMaps& maps, const Work& work,
                            const ScanRing<K, kConsumers>& ring) {
  using R = ScanRing<K, kConsumers>;
  using Boxes = TileBoxes<K, kConsumers>;
  const Boxes boxes{maps, work};
  const std::byte* record = work.records;
  RingStage stage;
  for (int chunk = 0; chunk < work.chunks; ++chunk, stage.advance(R::kStages)) {
    const std::uint32_t place = ring.stage_address(stage.index);
    const Mbarrier full = ring.full[stage.index];
    ring.applied[stage.index].wait(stage.parity ^ 1U);
    full.arrive_expect_tx(Boxes::kKeyBytes + Boxes::kValueBytes + ChunkRecord::kBytes);
    boxes.load_keys(place, chunk, full);
    boxes.load_values(place, chunk, full);
    bulk_copy(place + R::kRecord, record, ChunkRecord::kBytes, full);
    record += static_cast<std::int64_t>(args.hv) * ChunkRecord::kPitch;
  }
}

// By a warp: copies the outputs to memory. Consumers store f32 outputs themselves.
template <class T, int K, int kConsumers>
__device__ void store_outputs(const ChunkArguments& args, const ChunkMaps& maps, const Work& work,
                              const ScanRing<K, kConsumers>& ring, int lane) {
  using R = ScanRing<K, kConsumers>;
  const TileBoxes<K, kConsumers> boxes{maps, work};
  for (int chunk = 0; chunk < work.chunks; ++chunk) {
    ring.written.wait(static_cast<std::uint32_t>(chunk % 2));
    if (chunk >= work.warmup && !args.o_is_f32) {
      if (!is_whole(work, chunk)) {
        store_rows<T>(args, work, ring.bytes + R::kOutput, kConsumers, chunk);
      } else if (lane == 0) {
        fence_proxy_async();
        boxes.store_output(ring.address + R::kOutput, chunk);
        boxes.finish_stores();
      }
      __syncwarp();
    }
    if (lane == 0) ring.stored.arrive();
  }
}

// A lane's scale factors of 64 tokens. Volatile: the loads stay before the products whose operands they would wait for.
__device__ __forceinline__ void load_scales(std::uint32_t address, float2 (&scales)[8]) {
#pragma unroll
  for (int block = 0; block < 8; ++block) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(scales[block].x), "=f"(scales[block].y)
                 : "r"(address + static_cast<std::uint32_t>(32 * block)));
  }
}
__device__ __forceinline__ float load_scale(std::uint32_t address) {
  float scale;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale) : "r"(address));
  return scale;
}

// Applies a run of chunks to 64 rows of the state. A conversion runs beside a product that does not depend on it: of X
// to Y, beside the first part of S q^T; of V', beside the second part; of S, beside V' P^T. One function, since ptxas
// moves the instructions between products into place only within one; it takes neither a wait in a divergent path nor
// one for products of the iteration before, hence uniform() and the wait for all at the end (docs/notes).
template <class T, int K, bool kPlain, int kConsumers>
__device__ void scan_chunks(const ChunkArguments& args, const Work& work, const ScanRing<K, kConsumers>& ring,
                            int group) {
  using R = ScanRing<K, kConsumers>;
  constexpr int kSteps = K / 16;
  constexpr int kEarly = kSteps / 2;  // steps of S q^T
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int row = work.first_row + group * kRows + 16 * warp;
  const int chunks = uniform(work.chunks);
  const int length = uniform(work.length);
  // Where the lane reads v and writes o, in blocks of eight tokens by eight rows, and its first scale factor.
  const std::uint32_t block_place =
      static_cast<std::uint32_t>(group * kTile) + swizzled(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
  const std::uint32_t scale_place = static_cast<std::uint32_t>(R::kRecord + lane % 4 * 8);

  float s[K / 2];
  load_state(args, work, row, lane, s);
  std::uint32_t s16[kSteps][4];
  to_operand<T, kSteps>(s, s16);
  float o[32] = {};
  const auto clear_behind = [&](int stage, int left) {
    std::byte* const tiles = ring.stage_bytes(stage);
    if (group == 0) clear_rows(tiles, K / kTileColumns, left, thread);
    clear_rows(tiles + R::kValues + group * kTile, 1, left, thread);
    named_barrier(1, R::kThreads);
  };
  const auto leave_output = [&](int chunk) {
    ring.stored.wait(static_cast<std::uint32_t>(chunk % 2 ^ 1));
    write_output<T, kPlain>(args, work, chunk, row, ring.address + R::kOutput + block_place, lane, o);
    ring.written.arrive();
  };
  RingStage stage;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const std::uint32_t place = ring.stage_address(stage.index);
    ring.full[stage.index].wait(stage.parity);
    if (const int left = length - chunk * kChunk; left < kChunk) clear_behind(stage.index, left);
    std::uint32_t y[4][4];  // v at first
    float2 x_scales[8];
    float2 beta[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_blocks_transposed(y[i], place + R::kValues + block_place + static_cast<std::uint32_t>(i * 16 * 128));
    }
    load_scales(place + scale_place + ChunkRecord::kX, x_scales);
    load_scales(place + scale_place + ChunkRecord::kBeta, beta);
    const float decay = load_scale(place + R::kRecord + ChunkRecord::kDecay);

    float x[32];
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma<T, false>(x, s16[step], describe_rows(place, step / 4 * kTile + step % 4 * 32), step > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();  // complete already; else the compiler adds a wait for X
    pin(o);
    if (chunk > 0) leave_output(chunk - 1);
    const auto query = [&](int first, int last) {
      wgmma_fence();
#pragma unroll
      for (int step = first; step < last; ++step) {
        wgmma<T, false>(o, s16[step], describe_rows(place, R::kQueries + step / 4 * kTile + step % 4 * 32), step > 0);
      }
      wgmma_commit();
    };
    query(0, kEarly);
    if constexpr (!kPlain) {
      if (args.checkpoints.data != nullptr) store_checkpoint(args, work, chunk, row, lane, s);
    }
    wgmma_wait<2>();  // as above
    pin(s);
#pragma unroll
    for (float& value : s) value *= decay;
    wgmma_wait<1>();
    pin(x);
    float2 d[8];
    load_scales(place + scale_place + ChunkRecord::kD, d);
    // Y^T = v^T - X^T x, and in x the first summand of V'^T, Y^T beta
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 values = unpack<T>(y[i / 4][i % 4]);
      const float low = values.x - x[2 * i] * x_scales[i / 2].x;
      const float high = values.y - x[2 * i + 1] * x_scales[i / 2].y;
      y[i / 4][i % 4] = pack<T>(low, high);
      x[2 * i] = low * beta[i / 2].x;
      x[2 * i + 1] = high * beta[i / 2].y;
    }
    // V'^T += Y^T T^T
    pin(x);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma<T, false>(x, y[step], describe_rows(place, R::kRecord + ChunkRecord::kT + step * 32), 1);
    }
    wgmma_commit();
    query(kEarly, kSteps);
    wgmma_wait<1>();
    pin(x);
    float2 scales[8];
    load_scales(place + scale_place + ChunkRecord::kO, scales);
    // S += (V'^T d) k
    std::uint32_t decayed[4][4];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      decayed[i / 4][i % 4] = pack<T>(x[2 * i] * d[i / 2].x, x[2 * i + 1] * d[i / 2].y);
    }
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma<T, true>(s, decayed[step], describe_columns(place, step * 2048), 1);
    }
    wgmma_commit();
    // O^T = (S q^T) o + V'^T P^T
    std::uint32_t plain[4][4];
    to_operand<T, 4>(x, plain);
    wgmma_wait<1>();
    pin(o);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      o[2 * i] *= scales[i / 2].x;
      o[2 * i + 1] *= scales[i / 2].y;
    }
    pin(o);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma<T, false>(o, plain[step], describe_rows(place, R::kRecord + ChunkRecord::kP + step * 32), 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    pin(s);
    to_operand<T, kSteps>(s, s16);
    wgmma_wait<0>();
    pin(o);
    ring.applied[stage.index].arrive();
    stage.advance(R::kStages);
  }
  if (chunks > 0) leave_output(chunks - 1);
  store_state(args, work, row, lane, s);
}

}  // namespace thalweg::cu::sm90
