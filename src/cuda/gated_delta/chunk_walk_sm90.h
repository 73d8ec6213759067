#pragma once

// A consumer warpgroup of the fused kernels: applies a run of chunks to 64 rows of S [V,K], which it holds in
// registers. Everything is transposed, so that each product's result is an operand of the next one without leaving the
// registers (accumulators and operands have the same layout, except for the rounding to 16 bits):
//
//   X^T = S k^T
//   Y^T = v^T - X^T x
//   V'^T = Y^T beta + Y^T T^T
//   O^T = (S q^T) o + V'^T P^T
//   S = S decay + (V'^T d) k
//
// Consumer warpgroups never wait for each other, so that the products of one overlap the arithmetic of the other.
// Within a chunk the products that the state depends on (X, V', S) come first; those of the output fill the gaps in
// which results are converted to operands.

#include "cuda/common/wgmma.h"
#include "cuda/gated_delta/chunk_ring_sm90.h"
#include "cuda/gated_delta/state_rows.h"

namespace thalweg::cu::sm90 {

__device__ inline void store_blocks_transposed(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                               std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// Operand of the next product: step i covers columns 16i..16i+15 of the accumulator.
template <class T, int kSteps>
__device__ void to_operand(const float (&sum)[8 * kSteps], std::uint32_t (&operand)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kSteps; ++i) operand[i / 4][i % 4] = pack<T>(sum[2 * i], sum[2 * i + 1]);
}

// Writes a chunk's output of 16 rows from `row` on to the lane's place in shared memory, or as f32 to memory.
template <class T, bool kPlain>
__device__ __forceinline__ void write_output(const ChunkArguments& args, const Work& work, int chunk, int row,
                                             std::uint32_t place, int lane, const float (&o)[32]) {
  if (!kPlain && args.o_is_f32) {
    const int length = chunk < work.warmup ? 0 : work.length - chunk * kChunk;
    float* to = static_cast<float*>(args.o.data) + work.row * args.o.strides[0] +
                (work.begin + chunk * kChunk) * args.o.strides[1] + work.head * args.o.strides[2] + row + lane / 4;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (token < length) to[token * args.o.strides[1] + i / 2 % 2 * 8] = o[i];
    }
    return;
  }
  std::uint32_t o16[4][4];
  to_operand<T, 4>(o, o16);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    store_blocks_transposed(place + static_cast<std::uint32_t>(i * 16 * 128), o16[i][0], o16[i][1], o16[i][2],
                            o16[i][3]);
  }
}

// Whether a call has no checkpoints and outputs of 16 bits. The loop over chunks is then 8 kB of instructions instead
// of 33, where a multiprocessor's cache of instructions has 32.
inline bool is_plain(const ChunkArguments& args) { return args.checkpoints.data == nullptr && !args.o_is_f32; }

// Applies a run of chunks to 64 rows of the state. kFrugal: needs fewer registers, as S q^T is complete before Y is
// begun, so that the rounded state need not be kept. One function: ptxas schedules it better than a function per step
// (docs/notes).
template <class T, int K, bool kFrugal, bool kPlain, class R>
__device__ void consume(const ChunkArguments& args, const Work& work, const R& ring, int group) {
  constexpr int kSteps = K / 16;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int first_row = work.first_row + group * kRows;
  // Where the lane reads v and writes o, in blocks of eight tokens by eight rows.
  const std::uint32_t block_place = static_cast<std::uint32_t>(R::kValues + group * kTile) +
                                    swizzled(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);

  float s[K / 2];
  load_state(args, work, first_row + 16 * warp, lane, s);
  std::uint32_t s16[kSteps][4];
  to_operand<T, kSteps>(s, s16);
  float o[32] = {};

  // Writes a finished chunk's output over its v, and hands the stage back.
  const auto leave_output = [&](int chunk, int stage) {
    write_output<T, kPlain>(args, work, chunk, first_row + 16 * warp, ring.stage_address(stage) + block_place, lane, o);
    fence_proxy_async();
    ring.arrive_done(stage);
  };

  int stage = 0;
  int last_stage = 0;
  for (int chunk = 0; chunk < work.chunks; ++chunk) {
    const std::uint32_t place = ring.stage_address(stage);
    const std::uint32_t record = place + R::kRecord;
    const auto* scalars = reinterpret_cast<const float2*>(ring.stage_bytes(stage) + R::kRecord) + lane % 4;
    if constexpr (!kPlain) {
      if (args.checkpoints.data != nullptr) store_checkpoint(args, work, chunk, first_row + 16 * warp, lane, s);
    }
    ring.wait_until_loaded(work, chunk, stage);

    float x[32];
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma<T, false>(x, s16[step], describe_rows(place, step / 4 * kTile + step % 4 * 32), step > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    pin(o);
    if (chunk > 0) leave_output(chunk - 1, last_stage);
    const auto query = [&](int first, int last) {
#pragma unroll
      for (int step = first; step < last; ++step) {
        wgmma<T, false>(o, s16[step], describe_rows(place, R::kQueries + step / 4 * kTile + step % 4 * 32), step > 0);
      }
      wgmma_commit();
    };
    constexpr int kEarly = kFrugal ? kSteps : kSteps / 2;
    wgmma_fence();
    query(0, kEarly);

    ring.wait_until_full(chunk, stage);
    std::uint32_t y[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_blocks_transposed(y[i], place + block_place + static_cast<std::uint32_t>(i * 16 * 128));
    }
    const float decay = *reinterpret_cast<const float*>(ring.stage_bytes(stage) + R::kRecord + ChunkRecord::kDecay);
#pragma unroll
    for (float& value : s) value *= decay;

    // Y^T = v^T - X^T x, and in x the first summand of V'^T, Y^T beta
    if constexpr (kFrugal) {
      wgmma_wait<0>();
      pin(o);
    } else {
      wgmma_wait<1>();
    }
    pin(x);
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      const float2 scale = scalars[ChunkRecord::kX / 8 + 4 * block];
      const float2 beta = scalars[ChunkRecord::kBeta / 8 + 4 * block];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t& packed = y[block / 2][block % 2 * 2 + half];
        float& low = x[4 * block + 2 * half];
        float& high = x[4 * block + 2 * half + 1];
        const float2 v = unpack<T>(packed);
        low = v.x - low * scale.x;
        high = v.y - high * scale.y;
        packed = pack<T>(low, high);
        low *= beta.x;
        high *= beta.y;
      }
    }
    // V'^T += Y^T T^T
    pin(x);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma<T, false>(x, y[step], describe_rows(record, ChunkRecord::kT + step * 32), 1);
    }
    wgmma_commit();
    if constexpr (!kFrugal) query(kEarly, kSteps);
    wgmma_wait<kFrugal ? 0 : 1>();
    pin(x);
    // S += (V'^T d) k
    std::uint32_t decayed[4][4];
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      const float2 scale = scalars[ChunkRecord::kD / 8 + 4 * block];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        decayed[block / 2][block % 2 * 2 + half] =
            pack<T>(x[4 * block + 2 * half] * scale.x, x[4 * block + 2 * half + 1] * scale.y);
      }
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
    float2 scales[8];
#pragma unroll
    for (int block = 0; block < 8; ++block) scales[block] = scalars[ChunkRecord::kO / 8 + 4 * block];
    wgmma_wait<1>();
    pin(o);
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        o[4 * block + 2 * half] *= scales[block].x;
        o[4 * block + 2 * half + 1] *= scales[block].y;
      }
    }
    pin(o);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma<T, false>(o, plain[step], describe_rows(record, ChunkRecord::kP + step * 32), 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    pin(s);
    to_operand<T, kSteps>(s, s16);
    wgmma_wait<0>();
    pin(o);
    ring.arrive_applied(stage);
    last_stage = stage;
    stage = R::after(stage);
  }
  wgmma_wait<0>();
  pin(o);
  if (work.chunks > 0) leave_output(work.chunks - 1, last_stage);
  store_state(args, work, first_row + 16 * warp, lane, s);
}

}  // namespace thalweg::cu::sm90
