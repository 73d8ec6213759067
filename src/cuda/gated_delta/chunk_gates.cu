// The sums of g over the chunks of split sequences, from which the blocks see which segments decay (segments.h).
//
// Roles: a block has a chunk and 32 heads, a lane a head; a warp sums over 8 tokens.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/chunk_choice.h"
#include "cuda/gated_delta/chunk_kernels.h"
#include "cuda/gated_delta/gate.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kHeads = 32;
constexpr int kWarps = 8;
constexpr int kTokens = kChunk / kWarps;  // of a warp

__device__ float load_gate(const ChunkArguments& args, int row, int token, int head) {
  if (!args.gate_a.defined()) return args.g.row(row, token)[head];
  return compute_gate(args.gate_a.load(args.gate_a.offset(row, token) + head),
                      args.gate_b.load(args.gate_b.offset(row, token) + head), args.a_log.load(head),
                      args.dt_bias.load(head))
      .g;
}

__global__ void __launch_bounds__(kHeads* kWarps) chunk_gates(const __grid_constant__ ChunkArguments args) {
  __shared__ float sums[kWarps][kHeads];
  const int lane = static_cast<int>(threadIdx.x) % kHeads;
  const int warp = static_cast<int>(threadIdx.x) / kHeads;
  const int index = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y) * kHeads + lane;
  pdl_trigger_and_wait();
  if (!is_taken(args)) return;
  const int n = args.map.sequence_of(index, kChunk);
  const SequenceMap::Sequence sequence = args.map.sequence(n);
  const int first = (index - args.map.first_index(n, kChunk)) * kChunk;
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int token = first + warp * kTokens + i;
    if (head < args.hv && first >= 0 && token < sequence.length) {
      sum += load_gate(args, sequence.row, sequence.begin + token, head);
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || head >= args.hv) return;
#pragma unroll
  for (int i = 1; i < kWarps; ++i) sum += sums[i][lane];
  args.chunk_gates[static_cast<std::int64_t>(index) * args.hv + head] = sum;
}

}  // namespace

void launch_chunk_gates(const ChunkArguments& args, const DeviceProperties& device, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.chunks), static_cast<unsigned>((args.hv + kHeads - 1) / kHeads));
  pdl_launch(chunk_gates, grid, kHeads * kWarps, 0, device, stream, "chunk_gated_delta_rule", args);
}

}  // namespace thalweg::cu
