// The states at the starts of segments, S_p+1 = S_p M_p + B_p, between the two launches of a split second pass.
//
// Roles: a block has kRows rows of one head's state over the segments of a sequence. A thread has a column and one of
//   kRanges ranges of the sum over the rows of M; thread (range, column) also owns row `range` of the state there.
// Shared memory: the state, the partial sums, which segments decay.
// Pipeline: a thread loads its range of the next segment's M while it sums this one's, for K up to 128.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/chunk_kernels.h"
#include "cuda/gated_delta/segments.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kRows = 4;
constexpr int kRanges = 4;

template <int K>
__global__ void __launch_bounds__(K* kRanges) chunk_carry(const __grid_constant__ ChunkArguments args) {
  constexpr int kLength = K / kRanges;  // of a range
  extern __shared__ bool decays[];      // per segment: nothing before it matters after it
  __shared__ float state[kRows][K];
  __shared__ float sums[kRanges][kRows][K];
  const int n = static_cast<int>(blockIdx.z);
  const int head = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.x) * kRows;
  const int column = static_cast<int>(threadIdx.x) % K;
  const int range = static_cast<int>(threadIdx.x) / K;
  pdl_trigger_and_wait();
  const SequenceMap::Sequence sequence = args.map.sequence(n);
  const std::int64_t slot = args.state_indices != nullptr ? args.state_indices[n] : n;
  if (!sequence.valid || slot >= args.state_slots) return;

  const int segments = segment_count(args, sequence.length);
  for (int p = static_cast<int>(threadIdx.x) / 32; p + 1 < segments; p += K * kRanges / 32) {
    const bool decayed = warmup_chunks(args, n, p, head) > 0;
    if (threadIdx.x % 32 == 0) decays[p] = decayed;
  }
  static_assert(kRanges == kRows);
  float s = 0.0F;
  if (args.initial_state.data != nullptr && slot >= 0) {
    const std::int64_t* strides = args.initial_state.strides;
    const std::int64_t at =
        slot * strides[0] + head * strides[1] +
        (args.state_is_kv ? column * strides[2] + row + range : (row + range) * strides[2] + column);
    const void* const states = args.initial_state.data;
    s = args.state_is_bf16 ? to_f32(static_cast<const Bf16*>(states)[at]) : static_cast<const float*>(states)[at];
  }
  __syncthreads();
  // A segment that does not decay has M and B; one that does has B if the next one does not.
  const auto has_b = [&](int p) { return p + 1 < segments && (!decays[p] || (p + 2 < segments && !decays[p + 1])); };
  constexpr bool kAhead = K <= 128;  // larger K: too few registers
  float m[kAhead ? kLength : 1];
  float b = 0.0F;
  const auto load = [&](int p) {
    if (!has_b(p)) return;
    const Carry now = carry(args, n, p, head);
    b = now.b[(row + range) * K + column];
    if (decays[p]) return;
    if constexpr (kAhead) {
#pragma unroll
      for (int i = 0; i < kLength; ++i) m[i] = now.m[(range * kLength + i) * K + column];
    }
  };
  load(0);
  for (int p = 0; p + 1 < segments; ++p) {
    if (has_b(p)) {
      float next = b;
      if (!decays[p]) {
        state[range][column] = s;
        __syncthreads();
        float sum[kRows] = {};
        const float* matrix = carry(args, n, p, head).m + range * kLength * K + column;
#pragma unroll(kAhead ? kLength : 16)
        for (int i = 0; i < kLength; ++i) {
          const float element = kAhead ? m[kAhead ? i : 0] : matrix[i * K];
          for (int r = 0; r < kRows; ++r) sum[r] += state[r][range * kLength + i] * element;
        }
        for (int r = 0; r < kRows; ++r) sums[range][r][column] = sum[r];
        load(p + 1);
        __syncthreads();
        for (int i = 0; i < kRanges; ++i) next += sums[i][range][column];
      } else {
        load(p + 1);
      }
      s = next;
      carry(args, n, p + 1, head).start[(row + range) * K + column] = next;
    } else {
      load(p + 1);
    }
  }
}

}  // namespace

void launch_chunk_carry(const ChunkArguments& args, const DeviceProperties& device, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.value_width / kRows), static_cast<unsigned>(args.hv),
                  static_cast<unsigned>(args.map.sequences));
  const auto threads = static_cast<unsigned>(args.key_width * kRanges);
  const auto bytes = static_cast<std::size_t>(args.segments);
  const auto kernel = args.key_width == 64    ? chunk_carry<64>
                      : args.key_width == 128 ? chunk_carry<128>
                                              : chunk_carry<256>;
  pdl_launch(kernel, grid, threads, bytes, device, stream, "chunk_gated_delta_rule", args);
}

}  // namespace thalweg::cu
