// The states at the starts of segments, S_p+1 = S_p M_p + B_p, between the two launches of a split second pass.
//
// Roles: a block has kRows rows of one head's state over the segments of a sequence, a warp kTiles tiles of eight
//   columns, and one of kParts parts of the sum over the rows of M. S and B are accumulators of the matrix
//   instructions, M is their second factor (mma.h, split_float.h: f32 accuracy). Warps of the first part have the
//   state.
// Shared memory: the state, the sums of the second part, which segments decay.
// Pipeline: a warp loads its share of the next segment's M while it multiplies by this one's, for K up to 128.

#include "cuda/common/pdl.h"
#include "cuda/common/split_float.h"
#include "cuda/gated_delta/chunk_choice.h"
#include "cuda/gated_delta/chunk_kernels.h"
#include "cuda/gated_delta/segments.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kRows = 16;
constexpr int kTiles = 2;

template <int K>
struct CarryShape {
  static constexpr bool kAhead = K <= 128;  // larger K: too few registers
  static constexpr int kParts = kAhead ? 2 : 1;
  static constexpr int kColumnWarps = K / (8 * kTiles);
  static constexpr int kThreads = 32 * kColumnWarps * kParts;
};

// A thread's elements of kRows rows of a matrix, as accumulators.
template <int kPitch>
struct CarryTiles {
  int offset;  // of its first element

  __device__ static constexpr int place(int i) { return i / 4 * 8 + i % 4 / 2 * 8 * kPitch; }
  __device__ void load(const float* matrix, float (&to)[kTiles][4]) const {
#pragma unroll
    for (int i = 0; i < 4 * kTiles; i += 2) {
      const float2 pair = *reinterpret_cast<const float2*>(matrix + offset + place(i));
      to[i / 4][i % 4] = pair.x;
      to[i / 4][i % 4 + 1] = pair.y;
    }
  }
  __device__ void store(float* matrix, const float (&from)[kTiles][4]) const {
#pragma unroll
    for (int i = 0; i < 4 * kTiles; i += 2) {
      *reinterpret_cast<float2*>(matrix + offset + place(i)) = {from[i / 4][i % 4], from[i / 4][i % 4 + 1]};
    }
  }
};

__device__ void load_initial(const ChunkArguments& args, std::int64_t slot, int head, int row, int column,
                             float (&s)[kTiles][4]) {
  const std::int64_t* strides = args.initial_state.strides;
#pragma unroll
  for (int i = 0; i < 4 * kTiles; ++i) {
    const std::int64_t r = row + i % 4 / 2 * 8;
    const std::int64_t c = column + i / 4 * 8 + i % 2;
    const std::int64_t at =
        slot * strides[0] + head * strides[1] + (args.state_is_kv ? c * strides[2] + r : r * strides[2] + c);
    s[i / 4][i % 4] = args.state_is_bf16 ? to_f32(static_cast<const Bf16*>(args.initial_state.data)[at])
                                         : static_cast<const float*>(args.initial_state.data)[at];
  }
}

template <int K>
__global__ void __launch_bounds__(CarryShape<K>::kThreads) chunk_carry(const __grid_constant__ ChunkArguments args) {
  using Shape = CarryShape<K>;
  constexpr bool kAhead = Shape::kAhead;
  constexpr int kSteps = K / 8 / Shape::kParts;
  constexpr int kPitch = K + 4;     // rows of fragments in different banks
  extern __shared__ bool decays[];  // per segment: nothing before it matters after it
  __shared__ __align__(16) float state[kRows * kPitch];
  __shared__ __align__(16) float sums[Shape::kParts == 2 ? kRows * kPitch : 1];
  const int n = static_cast<int>(blockIdx.z);
  const int head = static_cast<int>(blockIdx.y);
  const int warp = warp_of(static_cast<int>(threadIdx.x));
  const int part = warp / Shape::kColumnWarps;
  const int first_column = warp % Shape::kColumnWarps * 8 * kTiles;
  const int group = static_cast<int>(threadIdx.x) % 32 / 4;
  const int quad = static_cast<int>(threadIdx.x) % 4;
  const int row = static_cast<int>(blockIdx.x) * kRows + group;
  pdl_trigger_and_wait();
  if (!is_taken(args)) return;
  const SequenceMap::Sequence sequence = args.map.sequence(n);
  const std::int64_t slot = args.state_indices != nullptr ? args.state_indices[n] : n;
  if (!sequence.valid || slot >= args.state_slots) return;

  const int segments = segment_count(args, sequence.length);
  for (int p = warp; p + 1 < segments; p += Shape::kThreads / 32) {
    const bool decayed = warmup_chunks(args, n, p, head) > 0;
    if (threadIdx.x % 32 == 0) decays[p] = decayed;
  }
  float s[kTiles][4] = {};
  if (part == 0 && args.initial_state.data != nullptr && slot >= 0) {
    load_initial(args, slot, head, row, first_column + 2 * quad, s);
  }
  __syncthreads();
  // A segment that does not decay has M and B; one that does has B if the next one does not.
  const auto has_m = [&](int p) { return p + 1 < segments && !decays[p]; };
  const auto has_b = [&](int p) { return has_m(p) || (p + 2 < segments && !decays[p + 1]); };
  const Carry first = carry(args, n, 0, head);
  const std::int64_t distance = args.hv * segment_floats(K, args.value_width);  // from one segment to the next
  const CarryTiles<K> in_memory{row * K + first_column + 2 * quad};
  const CarryTiles<kPitch> in_shared{group * kPitch + first_column + 2 * quad};

  float m[kAhead ? kSteps : 1][kTiles][2];
  const float* const matrices = first.m + (part * kSteps * 8 + quad) * K + first_column + group;
  const auto load_m = [&](const float* matrix, int step, float(&to)[kTiles][2]) {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) to[i / 2][i % 2] = matrix[(8 * step + i % 2 * 4) * K + i / 2 * 8];
  };
  const auto load_all = [&](int p) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) load_m(matrices + p * distance, step, m[kAhead ? step : 0]);
  };
  if (kAhead && has_m(0)) load_all(0);
  for (int p = 0; p + 1 < segments; ++p) {
    const bool multiplies = has_m(p);
    const bool loads = kAhead && has_m(p + 1);
    float b[kTiles][4];
    if (part == 0 && has_b(p)) in_memory.load(first.b + p * distance, b);
    float sum[kTiles][4] = {};
    if (multiplies) {
      if (part == 0) in_shared.store(state, s);
      __syncthreads();
      float low[kTiles][4] = {};
      const float* const matrix = matrices + (kAhead ? p + 1 : p) * distance;
#pragma unroll(kAhead ? kSteps : 4)
      for (int step = 0; step < kSteps; ++step) {
        float(&factors)[kTiles][2] = m[kAhead ? step : 0];
        if constexpr (!kAhead) load_m(matrix, step, factors);
        const float* const from = state + group * kPitch + (part * kSteps + step) * 8 + quad;
        SplitFloat a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = split(from[i % 2 * 8 * kPitch + i / 2 * 4]);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply_add_f32<true, true>(sum[tile], low[tile], a, split(factors[tile][0]), split(factors[tile][1]));
        }
        if (loads) load_m(matrix, step, factors);
      }
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) sum[i / 4][i % 4] += low[i / 4][i % 4];
      if constexpr (Shape::kParts == 2) {
        if (part == 1) in_shared.store(sums, sum);
      }
      __syncthreads();
    } else if (loads) {
      load_all(p + 1);
    }
    if (part != 0 || !has_b(p)) continue;
    float other[kTiles][4] = {};
    if (Shape::kParts == 2 && multiplies) in_shared.load(sums, other);
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) s[i / 4][i % 4] = b[i / 4][i % 4] + sum[i / 4][i % 4] + other[i / 4][i % 4];
    in_memory.store(first.start + (p + 1) * distance, s);
  }
}

}  // namespace

void launch_chunk_carry(const ChunkArguments& args, const DeviceProperties& device, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.value_width / kRows), static_cast<unsigned>(args.hv),
                  static_cast<unsigned>(args.map.sequences));
  const auto bytes = static_cast<std::size_t>(args.segments);
  const auto run = [&]<int K>(std::integral_constant<int, K>) {
    pdl_launch(chunk_carry<K>, grid, CarryShape<K>::kThreads, bytes, device, stream, "chunk_gated_delta_rule", args);
  };
  if (args.key_width == 64) {
    run(std::integral_constant<int, 64>{});
  } else if (args.key_width == 128) {
    run(std::integral_constant<int, 128>{});
  } else {
    run(std::integral_constant<int, 256>{});
  }
}

}  // namespace thalweg::cu
