// The second launch of moe_ffn's `grouped` (grouped.h).
//
// Roles: the first block chooses the experts, a warp for each token, and makes the items; the warps of the others
// convert a K tile of a token's activations each.
// Shared memory of the first block: logits of each warp's token [warps][E]; counts [E]; ids and ranks of pairs [T S].

#include "cuda/common/pdl.h"
#include "cuda/experts/choose_experts.h"
#include "cuda/experts/grouped.h"

namespace thalweg::cu {
namespace {

constexpr int kWarps = 32;
constexpr int kThreads = kWarps * kWarpSize;

// Chooses the experts of a token, by a warp, and stores them; lane s returns the expert of slot s. own_logits: [E].
__device__ int choose(const GroupedChoice& p, int token, float* own_logits) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int experts = p.logits.experts;
  const auto* const logits = static_cast<const float*>(p.logits.logits.data) + p.logits.logits.offset(token);
  for (int e = lane; e < experts; e += kWarpSize) {
    float sum = logits[e];
    for (int split = 1; split < p.logits.splits; ++split) sum += logits[split * p.logits.split_stride + e];
    own_logits[e] = sum;
  }
  __syncwarp();
  float sum = 0.0F;
  float* const total = p.renormalize ? nullptr : &sum;
  const ChosenExpert chosen = experts <= 256 ? choose_experts<8>(own_logits, experts, p.slots, total)
                                             : choose_experts<16>(own_logits, experts, p.slots, total);
  __syncwarp();  // the logits have been read
  const float largest = __shfl_sync(0xFFFFFFFFU, chosen.logit, 0);
  const float own = lane < p.slots ? expf(chosen.logit - largest) : 0.0F;
  if (p.renormalize) sum = warp_sum(own);
  if (lane < p.slots) {
    p.ids[token * p.slots + lane] = chosen.id;
    p.weights[token * p.slots + lane] = own / sum;
  }
  return chosen.id;
}

// The exclusive sum over the block's threads, and that of all.
__device__ int exclusive_sum(int value, int& total) {
  __shared__ int warp_totals[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  int up_to = value;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const int before = __shfl_up_sync(0xFFFFFFFFU, up_to, distance);
    if (lane >= distance) up_to += before;
  }
  if (lane == kWarpSize - 1) warp_totals[warp] = up_to;
  __syncthreads();
  int before = up_to - value;
  total = 0;
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before += warp_totals[i];
    total += warp_totals[i];
  }
  return before;
}

// Chooses the experts of all tokens and makes the items. The order of an expert's pairs is that in which warps arrive:
// nothing depends on it, since each is multiplied by itself.
__device__ void make_items(const GroupedChoice& p, int tokens, float* memory) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  const int experts = p.logits.experts;
  auto* const counts = reinterpret_cast<int*>(memory + kWarps * experts);
  int* const ids = counts + experts;
  int* const ranks = ids + tokens * p.slots;
  for (int e = thread; e < experts; e += kThreads) counts[e] = 0;
  __syncthreads();
  for (int token = warp; token < tokens; token += kWarps) {
    const int id = choose(p, token, memory + warp * experts);
    if (lane < p.slots) {
      ids[token * p.slots + lane] = id;
      ranks[token * p.slots + lane] = atomicAdd(&counts[id], 1);
    }
  }
  __syncthreads();
  // Pairs in the lower half, items in the upper one.
  const int size = p.items.item_tokens;
  const int count = thread < experts ? counts[thread] : 0;
  const int own_items = (count + size - 1) / size;
  int total;
  const int before = exclusive_sum(count | own_items << 16, total);
  const int shared_items = p.shared ? (tokens + size - 1) / size : 0;
  const int begin = before & 0xFFFF;
  for (int i = 0; i < own_items; ++i) {
    p.items.items[shared_items + (before >> 16) + i] = {thread, begin + i * size, min(size, count - i * size)};
  }
  for (int i = thread; i < shared_items; i += kThreads) {
    p.items.items[i] = {kSharedItem, i * size, min(size, tokens - i * size)};
  }
  if (thread == 0) *p.items.count = shared_items + (total >> 16);
  if (thread < experts) counts[thread] = begin;
  __syncthreads();
  for (int pair = thread; pair < tokens * p.slots; pair += kThreads) {
    p.items.pairs[counts[ids[pair]] + ranks[pair]] = pair;
  }
}

__device__ void convert(const GroupedChoice& p, int tile) {
  const int token = tile / p.k_tiles;
  const int column = (tile - token * p.k_tiles) * kFixedTileK + FixedLane().first();
  float x[8];
  with_type(p.x.dtype, [&]<class T>(T) {
    const T* const from = static_cast<const T*>(p.x.data) + p.x.offset(token) + column;
    if (p.x.fours) {
      const float4 a = load_four(from);
      const float4 b = load_four(from + 16);
      x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
      x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = to_f32(from[i / 4 * 16 + i % 4]);
    }
  });
  write_fixed_record(x, p.records + static_cast<std::int64_t>(tile) * kFixedRecordBytes);
}

__global__ void __launch_bounds__(kThreads, 1)
    grouped_choice_kernel(const __grid_constant__ GroupedChoice p, int tokens) {
  extern __shared__ float memory[];
  pdl_wait();
  pdl_trigger();
  if (blockIdx.x == 0) return make_items(p, tokens, memory);
  const int tile = (static_cast<int>(blockIdx.x) - 1) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  if (tile < tokens * p.k_tiles) convert(p, tile);
}

}  // namespace

void launch_grouped_choice(const GroupedChoice& choice, const DeviceProperties& device, cudaStream_t stream,
                           std::string_view operation) {
  const auto tokens = static_cast<int>(choice.logits.tokens);
  const int experts = choice.logits.experts;
  const auto bytes = static_cast<std::size_t>(4 * (kWarps * experts + experts + 2 * tokens * choice.slots));
  allow_shared_memory(reinterpret_cast<const void*>(grouped_choice_kernel), bytes, operation);
  const int blocks = 1 + (tokens * choice.k_tiles + kWarps - 1) / kWarps;
  pdl_launch(grouped_choice_kernel, dim3(static_cast<unsigned>(blocks)), kThreads, bytes, device, stream, operation,
             choice, tokens);
}

}  // namespace thalweg::cu
