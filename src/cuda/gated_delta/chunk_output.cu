#include "cuda/gated_delta/block_product.h"
#include "cuda/gated_delta/stages.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kColumns = 64;  // of V, of one product

struct ChunkOutputs {
  ChunkTable table;
  Elements q, k, v_new, h, g, o;
  std::int64_t chunks = 0;  // NC
  int hk = 0;
  int hv = 0;
  int k_size = 0;
  int v_size = 0;
  HeadMap head_map = HeadMap::kGrouped;
  float scale = 1.0F;
  bool seed = false;
};

// A block for each chunk and value head.
template <int kC>
__global__ void __launch_bounds__(kProductThreads) chunk_output_kernel(const __grid_constant__ ChunkOutputs p) {
  __shared__ union {
    typename BlockProduct<kC, kC>::Panels scores;
    typename BlockProduct<kC, kColumns>::Panels outputs;
  } panels;
  __shared__ float scores[kC][kC + 1];
  __shared__ float g[kC];
  const ChunkSpan chunk = find_chunk(p.table, blockIdx.x / static_cast<unsigned>(p.hv));
  const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(p.hv));
  const int k_head = key_head(p.head_map, head, p.hk, p.hv);
  if (chunk.length == 0 || chunk.number >= p.chunks) return;
  if (threadIdx.x < static_cast<unsigned>(chunk.length)) {
    g[threadIdx.x] = p.g.load(p.g.offset(chunk.row, chunk.begin + threadIdx.x) + head);
  }
  __syncthreads();
  const auto query = [&](int i, int d) {
    return i < chunk.length ? p.q.load(p.q.offset(chunk.row, chunk.begin + i, k_head) + d) : 0.0F;
  };
  const auto key = [&](int d, int j) {
    return j < chunk.length ? p.k.load(p.k.offset(chunk.row, chunk.begin + j, k_head) + d) : 0.0F;
  };
  BlockProduct<kC, kC> product;
  product.template add<true>(panels.scores, p.k_size, query, key);
  product.for_each([&](int i, int j, float dot) {
    const float gated = i < chunk.length && j <= i ? dot * expf(g[i] - g[j]) : 0.0F;
    scores[i][j] = p.seed ? round_to_bf16(gated) : gated;
  });
  const std::int64_t state = p.h.offset(chunk.row, chunk.number, head);
  for (int first = 0; first < p.v_size; first += kColumns) {
    BlockProduct<kC, kColumns> outputs;
    outputs.template add<true>(panels.outputs, p.k_size, query, [&](int d, int v) {
      return first + v < p.v_size ? p.h.load(state + (first + v) * p.h.strides[3] + d) : 0.0F;
    });
    outputs.for_each([&](int i, int, float& value) { value *= i < chunk.length ? expf(g[i]) : 0.0F; });
    outputs.template add<false>(
        panels.outputs, chunk.length, [&](int i, int j) { return scores[i][j]; },
        [&](int j, int v) {
          if (first + v >= p.v_size) return 0.0F;
          return p.v_new.load(p.v_new.offset(chunk.row, chunk.begin + j, head) + first + v);
        });
    outputs.for_each([&](int i, int v, float value) {
      if (i >= chunk.length || first + v >= p.v_size) return;
      p.o.store(p.o.offset(chunk.row, chunk.begin + i, head) + first + v, p.scale * value);
    });
  }
}

ChunkOutputs parameters(const ChunkOutputArgs& args) {
  ChunkOutputs p;
  p.table = chunk_table(args.cu_seqlens, args.k, args.chunk_size);
  p.q = elements(args.q);
  p.k = elements(args.k);
  p.v_new = elements(args.v_new);
  p.h = elements(args.h);
  p.g = elements(args.g_cumsum);
  p.o = elements(args.o);
  p.chunks = args.h.dim(1);
  p.hk = static_cast<int>(args.k.dim(2));
  p.hv = static_cast<int>(args.v_new.dim(2));
  p.k_size = static_cast<int>(args.k.dim(3));
  p.v_size = static_cast<int>(args.v_new.dim(3));
  p.head_map = args.head_map;
  p.scale = resolve_scale(args.scale, args.k.dim(3));
  p.seed = args.rounding == Rounding::kSeed;
  return p;
}

std::int64_t blocks(const ChunkOutputs& p) { return max_chunks(p.table) * p.hv; }

std::string supports(const ChunkOutputArgs& args, const Stream&) { return fits_grid(blocks(parameters(args))); }

void run(const ChunkOutputArgs& args, Workspace, const Stream& stream) {
  const ChunkOutputs p = parameters(args);
  if (blocks(p) == 0) return;
  const CurrentDevice current(stream, args.kName);
  with_chunk_size(args.chunk_size, [&]<int kC>() {
    chunk_output_kernel<kC><<<static_cast<unsigned>(blocks(p)), kProductThreads, 0, native(stream)>>>(p);
  });
  check(cudaGetLastError(), args.kName);
}

constexpr Kernel<ChunkOutputArgs> kKernels[] = {{"f32", supports, no_workspace<ChunkOutputArgs>, run}};

}  // namespace

KernelList<ChunkOutputArgs> chunk_output_kernels() { return kKernels; }

}  // namespace thalweg::cu
