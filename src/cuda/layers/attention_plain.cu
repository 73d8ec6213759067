// attention in f32, for whatever the kernels of matrix units refuse: any dtype and head size, any strides. A block has
// a query head of one token and up to 256 columns of its output; its warps take positions in turn, each with a softmax
// of its own, and are merged at the end.

#include "cuda/common/pdl.h"
#include "cuda/launch.h"
#include "cuda/layers/attention.h"
#include "cuda/layers/packed_cache.h"
#include "cuda/tuning.h"

namespace thalweg::cu::plain_attention {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kColumns = 256;
constexpr int kPerLane = kColumns / kWarpSize;
constexpr int kMaxWidth = 8192;  // a query has to fit into shared memory

struct Merge {
  float maxima[kWarps];
  float totals[kWarps];
  float sums[kWarps][kColumns];
};

// A row of a cache, element by element.
template <class T>
struct CachedRow {
  const T* from;

  __device__ CachedRow(const CacheView& cache, std::int64_t offset)
      : from(static_cast<const T*>(cache.data) + offset) {}
  __device__ float operator[](int d) const { return to_f32(from[d]); }
};
template <>
struct CachedRow<PackedQ8> {
  const std::uint8_t* blocks;

  __device__ CachedRow(const CacheView& cache, std::int64_t offset) : blocks(packed_row(cache, offset)) {}
  __device__ float operator[](int d) const {
    const std::uint8_t* block = blocks + d / 32 * 34;
    const F16 scale{*reinterpret_cast<const std::uint16_t*>(block)};
    return to_f32(scale) * static_cast<float>(static_cast<std::int8_t>(block[2 + d % 32]));
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) plain_kernel(const __grid_constant__ AttentionCall p) {
  extern __shared__ float query[];  // [D]
  __shared__ Merge merge;
  pdl_trigger_and_wait();
  const std::int64_t token = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int key_head = head / p.group;
  const int first_column = static_cast<int>(blockIdx.z) * kColumns;
  const int columns = min(kColumns, p.width - first_column);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  const CachedSequence sequence = find_cached(p.table, sequence_of_token(p.table, token));
  const std::int64_t i = token - sequence.begin;
  if (i < 0 || i >= sequence.fresh || !(sequence.valid || sequence.absent)) return;
  const std::int64_t o_row = p.o.offset(token, head) + first_column;
  if (sequence.absent) {
    if (thread < columns) p.o.store(o_row + thread, 0.0F);
    return;
  }
  const int visible = sequence.length - sequence.fresh + static_cast<int>(i) + 1;
  const std::int64_t q_row = p.q.offset(token, head);
  for (int d = thread; d < p.width; d += kThreads) query[d] = p.q.load(q_row + d);
  __syncthreads();

  float top = -INFINITY;
  float total = 0.0F;
  float sums[kPerLane] = {};
  for (int position = warp; position < visible; position += kWarps) {
    const std::int64_t k_offset = cache_offset(p.table, sequence, p.k, position);
    const std::int64_t v_offset = cache_offset(p.table, sequence, p.v, position);
    if (k_offset < 0) continue;
    const CachedRow<T> key(p.k, k_offset + key_head * p.k.strides[2]);
    const CachedRow<T> value(p.v, v_offset + key_head * p.v.strides[2] + first_column);
    float product = 0.0F;
    for (int d = lane; d < p.width; d += kWarpSize) product = fmaf(query[d], key[d], product);
    const float score = warp_sum(product) * p.scale;
    const float before = top;
    top = fmaxf(top, score);
    const float shrink = before == -INFINITY ? 0.0F : expf(before - top);
    const float weight = expf(score - top);
    total = fmaf(total, shrink, weight);
#pragma unroll
    for (int n = 0; n < kPerLane; ++n) {
      const int column = lane + n * kWarpSize;
      if (column < columns) sums[n] = fmaf(sums[n], shrink, weight * value[column]);
    }
  }
  if (lane == 0) {
    merge.maxima[warp] = top;
    merge.totals[warp] = total;
  }
#pragma unroll
  for (int n = 0; n < kPerLane; ++n) merge.sums[warp][lane + n * kWarpSize] = sums[n];
  __syncthreads();
  if (thread >= columns) return;
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, merge.maxima[w]);
  float sum = 0.0F;
  total = 0.0F;
  for (int w = 0; w < kWarps; ++w) {
    const float share = merge.maxima[w] == -INFINITY ? 0.0F : expf(merge.maxima[w] - top);
    total = fmaf(share, merge.totals[w], total);
    sum = fmaf(share, merge.sums[w][thread], sum);
  }
  float result = sum / total;
  if (p.gate.defined()) {
    const float x = p.gate.load(p.gate.offset(token, head) + first_column + thread);
    result *= 1.0F / (1.0F + expf(-x));
  }
  p.o.store(o_row + thread, result);
}

}  // namespace

std::string supports(const AttentionArgs& args, const Stream&) {
  constexpr std::int64_t kMostHeads = 65535;
  if (args.q.dim(2) > kMaxWidth) return "needs D to be at most 8192";
  if (args.q.dim(1) > kMostHeads) return "needs at most 65535 heads";
  if (args.q.dim(0) >= std::int64_t{1} << 31) return "needs fewer than 2^31 tokens";
  return positions_fit(args) ? "" : "needs fewer than 2^30 positions";
}

void run(const AttentionArgs& args, Workspace, const Stream& stream) {
  if (args.q.size() == 0) return;
  const AttentionCall p = attention_call(args, 1);
  const dim3 grid(static_cast<unsigned>(args.q.dim(0)), static_cast<unsigned>(p.heads),
                  static_cast<unsigned>((p.width + kColumns - 1) / kColumns));
  const CurrentDevice current(stream, args.kName);
  const auto launch = [&]<class T>(T) {
    pdl_launch(plain_kernel<T>, grid, dim3(kThreads), static_cast<std::size_t>(p.width) * sizeof(float),
               properties(stream.device.index), native(stream), args.kName, p);
  };
  args.k_cache.dtype == DType::kQ8_0 ? launch(PackedQ8{}) : with_type(args.k_cache.dtype, launch);
}

double cost(const AttentionArgs& args, const Stream&) {
  using namespace tuning::attention;
  return kPlain +
         kPlainMegaProduct * 1e-6 * static_cast<double>(args.q.size()) * static_cast<double>(capacity_of(args));
}

}  // namespace thalweg::cu::plain_attention
