// Router logits on Hopper, for many tokens: as in router_logits.cu, each operand is three bf16 terms, and six products
// count. A launch splits the router into its terms first, in the tiles that the products read.
//
// Roles: a block computes 64 tokens by up to 256 experts of one split of the columns. One producer thread copies the
// router's tiles in bulk; a consumer warpgroup splits activations into terms in registers, the left operand of wgmma.
// Shared memory: a ring of kStages tiles of 32 columns.
// Pipeline: full and empty mbarriers per stage.

#include <algorithm>

#include "cuda/common/elements.h"
#include "cuda/common/mbarrier.h"
#include "cuda/common/mma.h"
#include "cuda/common/pdl.h"
#include "cuda/common/tensor_view.h"
#include "cuda/common/wgmma.h"
#include "cuda/experts/routing.h"
#include "cuda/tuning.h"

namespace thalweg::cu::sm90 {
namespace {

constexpr int kTokens = 64;
constexpr int kExperts = 256;
constexpr int kTerms = 3;
constexpr int kConsumers = 128;
constexpr int kThreads = kConsumers + 32;
constexpr int kColumns = 32;  // per stage
constexpr int kStages = 4;
constexpr int kPlaneBytes = kExperts * kColumns * 2;
constexpr int kStageBytes = kTerms * kPlaneBytes;
constexpr int kSharedBytes = kStages * kStageBytes + 1024;

// Splits two numbers into their terms, in pairs.
__device__ inline void split(float low, float high, std::uint32_t (&terms)[kTerms]) {
#pragma unroll
  for (std::uint32_t& term : terms) {
    term = pack<__nv_bfloat16>(low, high);
    const float2 taken = unpack<__nv_bfloat16>(term);
    low -= taken.x;
    high -= taken.y;
  }
}

// ---- the router's tiles: [expert tile][32 columns][term], each kExperts swizzled rows; zeros beyond the last expert

// Byte offset of 16 bytes of a row of 64 in the "64-byte swizzle" of wgmma.
__device__ inline std::uint32_t swizzled_offset(int row, int vector) {
  return static_cast<std::uint32_t>(row * 64 + ((vector ^ (row / 2 % 4)) << 4));
}
// See describe_rows() of common/wgmma.h.
__device__ inline std::uint64_t describe_plane(std::uint32_t address, std::uint32_t offset) {
  constexpr std::uint64_t kSwizzleAndRowGroups = (std::uint64_t{2} << 62) | (std::uint64_t{512 >> 4} << 32);
  return kSwizzleAndRowGroups | ((address >> 4 | 1U << 16) + (offset >> 4));
}

constexpr int kStagingThreads = 256;

__global__ void __launch_bounds__(kStagingThreads)
    stage_router(const Elements router, const int experts, const int columns, std::uint8_t* const to) {
  pdl_trigger_and_wait();
  const int vectors = columns / 8;
  const int i = static_cast<int>(blockIdx.x) * kStagingThreads + static_cast<int>(threadIdx.x);
  const int expert = i / vectors;
  const int vector = i - expert * vectors;
  if (expert >= (experts + kExperts - 1) / kExperts * kExperts) return;
  std::uint32_t bits[8] = {};
  if (expert < experts) {
    const std::int64_t from = router.offset(expert) + 8 * vector;
#pragma unroll
    for (int j = 0; j < 8; ++j) bits[j] = router.read(from + j);
  }
  std::uint32_t terms[4][kTerms];
#pragma unroll
  for (int j = 0; j < 4; ++j) split(router.convert(bits[2 * j]), router.convert(bits[2 * j + 1]), terms[j]);
  const int chunk = expert / kExperts * (columns / kColumns) + vector / 4;
  std::uint8_t* tile =
      to + static_cast<std::int64_t>(chunk) * kStageBytes + swizzled_offset(expert % kExperts, vector % 4);
#pragma unroll
  for (int term = 0; term < kTerms; ++term) {
    *reinterpret_cast<uint4*>(tile + term * kPlaneBytes) = {terms[0][term], terms[1][term], terms[2][term],
                                                            terms[3][term]};
  }
}

// ---- the products

struct RouterProduct {
  Elements x;
  const std::uint8_t* router;  // staged
  float* logits;
  std::int64_t tokens;
  int experts;
  int chunks;  // of kColumns columns
  int split_chunks;
};

template <class X>
__global__ void __launch_bounds__(kThreads, 1) router_logits(const __grid_constant__ RouterProduct p) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ std::uint64_t full_barriers[kStages];
  __shared__ std::uint64_t empty_barriers[kStages];
  const int thread = static_cast<int>(threadIdx.x);
  const std::uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const MbarrierArray full{shared_address(full_barriers)};
  const MbarrierArray empty{shared_address(empty_barriers)};
  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      full[i].init(1);
      empty[i].init(kConsumers / 32);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  pdl_trigger_and_wait();
  const int first = static_cast<int>(blockIdx.z) * p.split_chunks;
  const int chunks = min(p.split_chunks, p.chunks - first);
  if (thread >= kConsumers) {
    if (thread > kConsumers) return;
    const std::uint8_t* from = p.router + (static_cast<std::int64_t>(blockIdx.y) * p.chunks + first) * kStageBytes;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int stage = chunk % kStages;
      empty[stage].wait((chunk / kStages % 2) ^ 1);
      full[stage].arrive_expect_tx(kStageBytes);
      bulk_copy(ring + static_cast<std::uint32_t>(stage * kStageBytes), from, kStageBytes, full[stage]);
      from += kStageBytes;
    }
    return;
  }

  const int lane = thread % 32;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kTokens + thread / 32 * 16 + lane / 4;
  const auto row_of = [&](std::int64_t at) {
    return static_cast<const X*>(p.x.data) + p.x.offset(min(at, p.tokens - 1)) + first * kColumns + lane % 4 * 2;
  };
  const X* const low = row_of(token);
  const X* const high = row_of(token + 8);
  // Steps of 16 columns; the activations of two steps are loaded ahead.
  constexpr int kSteps = kColumns / 16;
  const int steps = kSteps * chunks;
  float2 ahead[2][4];
  const auto load = [&](int step, float2(&to)[4]) {
    if (step >= steps) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const X* from = (i % 2 == 0 ? low : high) + 16 * step + i / 2 * 8;
      to[i] = p.x.fours ? load_two(from) : float2{to_f32(from[0]), to_f32(from[1])};
    }
  };
  load(0, ahead[0]);
  load(1, ahead[1]);
  float sum[kExperts / 2];
  std::uint32_t a[2][kTerms][4];  // of the running products, and of the next
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int stage = chunk % kStages;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t(&own)[kTerms][4] = a[step % 2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t terms[kTerms];
        split(ahead[step % 2][i].x, ahead[step % 2][i].y, terms);
#pragma unroll
        for (int term = 0; term < kTerms; ++term) own[term][i] = terms[term];
      }
      load(kSteps * chunk + step + 2, ahead[step % 2]);
      if (step == 0) full[stage].wait(chunk / kStages % 2);
      const std::uint32_t tile = ring + static_cast<std::uint32_t>(stage * kStageBytes);
      wgmma_fence();
      // The small products first.
#pragma unroll
      for (int order = kTerms - 1; order >= 0; --order) {
#pragma unroll
        for (int of_x = 0; of_x <= order; ++of_x) {
          wgmma<__nv_bfloat16>(
              sum, own[of_x],
              describe_plane(tile + static_cast<std::uint32_t>((order - of_x) * kPlaneBytes), step * 32),
              chunk + step + (kTerms - 1 - order) + of_x > 0 ? 1 : 0);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (step == 0 && chunk > 0 && lane == 0) empty[(chunk - 1) % kStages].arrive();
    }
  }
  wgmma_wait<0>();
  pin(sum);
  float* const logits = p.logits + static_cast<std::int64_t>(blockIdx.z) * p.tokens * p.experts;
#pragma unroll
  for (int i = 0; i < kExperts / 2; ++i) {
    const std::int64_t t = token + i % 4 / 2 * 8;
    const int e = static_cast<int>(blockIdx.y) * kExperts + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (t < p.tokens && e < p.experts) logits[t * p.experts + e] = sum[i];
  }
}

std::int64_t tiles_of(std::int64_t size, int tile) { return (size + tile - 1) / tile; }

}  // namespace

bool router_takes(std::int64_t tokens, std::int64_t experts, std::int64_t columns, const DeviceProperties& device) {
  return device.runs_sm90 && tokens >= tuning::experts::kWgmmaRouterTokens && experts > kExperts / 2 &&
         columns % kColumns == 0;
}

std::int64_t staged_router_bytes(std::int64_t experts, std::int64_t columns) {
  return tiles_of(experts, kExperts) * (columns / kColumns) * kStageBytes;
}

int router_splits(std::int64_t tokens, std::int64_t experts, std::int64_t columns, int multiprocessors) {
  const std::int64_t chunks = columns / kColumns;
  const std::int64_t blocks = tiles_of(tokens, kTokens) * tiles_of(experts, kExperts);
  constexpr std::int64_t kMostSplits = 16;
  const auto wanted = static_cast<int>(std::clamp<std::int64_t>(multiprocessors / blocks, 1, kMostSplits));
  return static_cast<int>(tiles_of(chunks, static_cast<int>(tiles_of(chunks, wanted))));
}

void launch_router_logits(const ConstTensor& x, const ConstTensor& router, void* staged, float* logits, int terms,
                          const DeviceProperties& device, cudaStream_t stream, std::string_view operation) {
  const std::int64_t experts = router.dim(0);
  const std::int64_t columns = x.dim(1);
  RouterProduct p{};
  p.x = elements(x);
  p.router = static_cast<const std::uint8_t*>(staged);
  p.logits = logits;
  p.tokens = x.dim(0);
  p.experts = static_cast<int>(experts);
  p.chunks = static_cast<int>(columns / kColumns);
  p.split_chunks = static_cast<int>(tiles_of(p.chunks, terms));
  const std::int64_t vectors = tiles_of(experts, kExperts) * kExperts * (columns / 8);
  pdl_launch(stage_router, dim3(static_cast<unsigned>(tiles_of(vectors, kStagingThreads))), kStagingThreads, 0, device,
             stream, operation, elements(router), p.experts, static_cast<int>(columns),
             static_cast<std::uint8_t*>(staged));
  const dim3 grid(static_cast<unsigned>(tiles_of(p.tokens, kTokens)),
                  static_cast<unsigned>(tiles_of(experts, kExperts)), static_cast<unsigned>(terms));
  with_type(x.dtype, [&]<class X>(X) {
    allow_shared_memory(reinterpret_cast<const void*>(router_logits<X>), kSharedBytes, operation);
    pdl_launch(router_logits<X>, grid, kThreads, kSharedBytes, device, stream, operation, p);
  });
}

}  // namespace thalweg::cu::sm90
