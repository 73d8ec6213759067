// Between the two halves of a split second pass: the states at the segments' starts, S_p+1 = S_p M_p + B_p.
//
// A block has a few rows of one head's state and goes through a sequence's segments; a thread has a column.

#include "cuda/chunk_kernels.h"
#include "cuda/device/segments.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kRows = 4;

__global__ void chunk_carry(const __grid_constant__ ChunkArguments args) {
  extern __shared__ float shared[];  // [kRows,K], then a flag per segment
  const int n = static_cast<int>(blockIdx.z);
  const int head = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.x) * kRows;
  const int column = static_cast<int>(threadIdx.x);
  const int k = args.key_width;
  const SequenceMap::Sequence sequence = args.map.sequence(n);
  const std::int64_t slot = args.state_indices != nullptr ? args.state_indices[n] : n;
  if (!sequence.valid || slot >= args.state_slots) return;

  const int segments = segment_count(args, sequence.length);
  auto* forgets = reinterpret_cast<bool*>(shared + kRows * k);
  for (int p = column / 32; p + 1 < segments; p += k / 32) {
    const bool forgotten = chunks_remembered(args, n, p, head) > 0;
    if (column % 32 == 0) forgets[p] = forgotten;
  }
  float s[kRows] = {};
  if (args.initial_state.data != nullptr && slot >= 0) {
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t* strides = args.initial_state.strides;
      const std::int64_t at = slot * strides[0] + head * strides[1] +
                              (args.state_is_kv ? column * strides[2] + row + r : (row + r) * strides[2] + column);
      s[r] = load_scalar(args.initial_state.data, args.state_is_bf16 ? ScalarType::kBF16 : ScalarType::kF32, at);
    }
  }
  __syncthreads();
  for (int p = 0; p + 1 < segments; ++p) {
    // Where the segment after next needs no exact state, nobody computed B of one that forgets.
    if (forgets[p] && (p + 2 >= segments || forgets[p + 1])) continue;
    const Carry now = carry(args, n, p, head);
    float next[kRows];
    for (int r = 0; r < kRows; ++r) next[r] = now.b[(row + r) * k + column];
    if (!forgets[p]) {
      for (int r = 0; r < kRows; ++r) shared[r * k + column] = s[r];
      __syncthreads();
#pragma unroll 16
      for (int i = 0; i < k; ++i) {
        const float factor = now.m[i * k + column];
        for (int r = 0; r < kRows; ++r) next[r] += shared[r * k + i] * factor;
      }
      __syncthreads();
    }
    const Carry after = carry(args, n, p + 1, head);
    for (int r = 0; r < kRows; ++r) {
      s[r] = next[r];
      after.start[(row + r) * k + column] = next[r];
    }
  }
}

}  // namespace

void launch_chunk_carry(const ChunkArguments& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.value_width / kRows), static_cast<unsigned>(args.hv),
                  static_cast<unsigned>(args.map.sequences));
  const auto threads = static_cast<unsigned>(args.key_width);
  const std::size_t bytes = kRows * threads * sizeof(float) + static_cast<std::size_t>(args.segments);
  chunk_carry<<<grid, threads, bytes, stream>>>(args);
  check(cudaGetLastError(), "chunk_gated_delta_rule");
}

}  // namespace thalweg::cu
