// The stages of the chunk form that do not depend on the state: chunk_local_cumsum, l2norm, chunk_scaled_dot_kkt,
// solve_tril, recompute_w_u.

#include <algorithm>

#include "cuda/gated_delta/block_product.h"
#include "cuda/gated_delta/stages.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

// ---- chunk_local_cumsum: a block for each chunk, a thread for each head

__global__ void cumsum_kernel(const __grid_constant__ ChunkTable table, const __grid_constant__ Elements g,
                              const __grid_constant__ Elements sums, int heads) {
  const ChunkSpan chunk = find_chunk(table, blockIdx.x);
  for (int h = static_cast<int>(threadIdx.x); h < heads; h += static_cast<int>(blockDim.x)) {
    float sum = 0.0F;
    for (int i = 0; i < chunk.length; ++i) {
      sum += g.load(g.offset(chunk.row, chunk.begin + i) + h);
      sums.store(sums.offset(chunk.row, chunk.begin + i) + h, sum);
    }
  }
}

std::string cumsum_supports(const ChunkLocalCumsumArgs& args, const Stream&) {
  return fits_grid(max_chunks(chunk_table(args.cu_seqlens, args.g, args.chunk_size)));
}

void run_cumsum(const ChunkLocalCumsumArgs& args, Workspace, const Stream& stream) {
  const ChunkTable table = chunk_table(args.cu_seqlens, args.g, args.chunk_size);
  const std::int64_t blocks = max_chunks(table);
  if (blocks == 0) return;
  const CurrentDevice current(stream, args.kName);
  cumsum_kernel<<<static_cast<unsigned>(blocks), 64, 0, native(stream)>>>(
      table, elements(args.g), elements(args.g_cumsum), static_cast<int>(args.g.dim(2)));
  check(cudaGetLastError(), args.kName);
}

constexpr Kernel<ChunkLocalCumsumArgs> kCumsum[] = {
    {"sequential", cumsum_supports, no_workspace<ChunkLocalCumsumArgs>, run_cumsum}};

// ---- l2norm: a warp for each row

constexpr int kNormWarps = 8;

__global__ void l2norm_kernel(const __grid_constant__ Elements x, const __grid_constant__ Elements y,
                              std::int64_t tokens, std::int64_t heads, std::int64_t rows, std::int64_t width,
                              float eps) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kNormWarps;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kNormWarps + threadIdx.x / kWarpSize; row < rows;
       row += step) {
    const std::int64_t b = row / (tokens * heads);
    const std::int64_t t = row / heads % tokens;
    const std::int64_t from = x.offset(b, t, row % heads);
    const std::int64_t to = y.offset(b, t, row % heads);
    float squares = 0.0F;
    for (std::int64_t i = lane; i < width; i += kWarpSize) {
      const float value = x.load(from + i);
      squares = fmaf(value, value, squares);
    }
    const float factor = 1.0F / sqrtf(warp_sum(squares) + eps);
    for (std::int64_t i = lane; i < width; i += kWarpSize) y.store(to + i, factor * x.load(from + i));
  }
}

void run_l2norm(const L2normArgs& args, Workspace, const Stream& stream) {
  const std::int64_t rows = args.x.dim(0) * args.x.dim(1) * args.x.dim(2);
  if (rows == 0) return;
  const CurrentDevice current(stream, args.kName);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((rows + kNormWarps - 1) / kNormWarps, 1 << 20));
  l2norm_kernel<<<blocks, kNormWarps * kWarpSize, 0, native(stream)>>>(
      elements(args.x), elements(args.y), args.x.dim(1), args.x.dim(2), rows, args.x.dim(3), args.eps);
  check(cudaGetLastError(), args.kName);
}

constexpr Kernel<L2normArgs> kL2norm[] = {{"rows", always_supported<L2normArgs>, no_workspace<L2normArgs>, run_l2norm}};

// ---- the other stages: a block for each chunk and value head

struct ChunkHeads {
  ChunkTable table;
  int hk = 0;
  int hv = 0;
  HeadMap head_map = HeadMap::kGrouped;
  bool seed = false;

  __device__ int value_head() const { return static_cast<int>(blockIdx.x % static_cast<unsigned>(hv)); }
  __device__ int key_head() const { return cu::key_head(head_map, value_head(), hk, hv); }
  __device__ ChunkSpan chunk() const { return find_chunk(table, blockIdx.x / static_cast<unsigned>(hv)); }
  __device__ float rounded(float x) const { return seed ? round_to_bf16(x) : x; }

  std::int64_t blocks() const { return max_chunks(table) * hv; }
};

// For args with k, head_map and rounding.
template <class Args>
ChunkHeads chunk_heads(const Args& args, std::int64_t hv) {
  return {chunk_table(args.cu_seqlens, args.k, args.chunk_size), static_cast<int>(args.k.dim(2)), static_cast<int>(hv),
          args.head_map, args.rounding == Rounding::kSeed};
}

// Launches kernel_of<chunk size>() with a block for each chunk and value head.
template <class Args, class Parameters, class KernelOf>
void launch_chunk_heads(const Args& args, const Parameters& p, const Stream& stream, KernelOf kernel_of) {
  if (p.blocks() == 0) return;
  const CurrentDevice current(stream, args.kName);
  with_chunk_size(args.chunk_size, [&]<int kC>() {
    kernel_of.template operator()<kC>()<<<static_cast<unsigned>(p.blocks()), kProductThreads, 0, native(stream)>>>(p);
  });
  check(cudaGetLastError(), args.kName);
}

// ---- chunk_scaled_dot_kkt

struct Kkt : ChunkHeads {
  Elements k, beta, g, a;
  int k_size = 0;
};

template <int kC>
__global__ void __launch_bounds__(kProductThreads) kkt_kernel(const __grid_constant__ Kkt p) {
  using Product = BlockProduct<kC, kC>;
  __shared__ typename Product::Panels panels;
  __shared__ float beta[kC];
  __shared__ float g[kC];
  const ChunkSpan chunk = p.chunk();
  const int head = p.value_head();
  const int k_head = p.key_head();
  if (threadIdx.x < static_cast<unsigned>(chunk.length)) {
    const std::int64_t token = chunk.begin + threadIdx.x;
    beta[threadIdx.x] = p.beta.load(p.beta.offset(chunk.row, token) + head);
    g[threadIdx.x] = p.g.load(p.g.offset(chunk.row, token) + head);
  }
  __syncthreads();
  const auto key = [&](int i, int d) {
    return i < chunk.length ? p.k.load(p.k.offset(chunk.row, chunk.begin + i, k_head) + d) : 0.0F;
  };
  const auto scaled = [&](int i, int d) {
    return p.seed && i < chunk.length ? round_to_bf16(beta[i] * key(i, d)) : key(i, d);
  };
  Product product;
  product.template add<true>(panels, p.k_size, scaled, [&](int d, int j) { return key(j, d); });
  product.for_each([&](int i, int j, float dot) {
    if (i >= chunk.length) return;
    const float value = j < i ? (p.seed ? dot : beta[i] * dot) * expf(g[i] - g[j]) : 0.0F;
    p.a.store(p.a.offset(chunk.row, chunk.begin + i, head) + j, value);
  });
}

Kkt kkt(const ChunkScaledDotKktArgs& args) {
  Kkt p;
  static_cast<ChunkHeads&>(p) = chunk_heads(args, args.beta.dim(2));
  p.k = elements(args.k);
  p.beta = elements(args.beta);
  p.g = elements(args.g_cumsum);
  p.a = elements(args.a);
  p.k_size = static_cast<int>(args.k.dim(3));
  return p;
}

std::string kkt_supports(const ChunkScaledDotKktArgs& args, const Stream&) { return fits_grid(kkt(args).blocks()); }

void run_kkt(const ChunkScaledDotKktArgs& args, Workspace, const Stream& stream) {
  launch_chunk_heads(args, kkt(args), stream, [&]<int kC>() { return kkt_kernel<kC>; });
}

constexpr Kernel<ChunkScaledDotKktArgs> kKkt[] = {{"f32", kkt_supports, no_workspace<ChunkScaledDotKktArgs>, run_kkt}};

// ---- solve_tril: 16 rows at a time, a product with the rows above, then substitution with a thread for each column

struct Solve : ChunkHeads {
  Elements a, a_inv;
};

template <int kC>
__global__ void __launch_bounds__(kProductThreads) solve_kernel(const __grid_constant__ Solve p) {
  constexpr int kPitch = kC + 1;
  constexpr int kBlock = 16;
  __shared__ float a[kC * kPitch];
  __shared__ float x[kC * kPitch];
  const ChunkSpan chunk = p.chunk();
  const int head = p.value_head();
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kC * kC; i += kProductThreads) {
    const int row = i / kC;
    const int column = i % kC;
    const bool used = row < chunk.length && column < row;
    a[row * kPitch + column] = used ? p.a.load(p.a.offset(chunk.row, chunk.begin + row, head) + column) : 0.0F;
    x[row * kPitch + column] = row == column ? 1.0F : 0.0F;
  }
  __syncthreads();
  for (int begin = 0; begin < chunk.length; begin += kBlock) {
    for (int i = thread; i < kBlock * begin; i += kProductThreads) {
      const int row = begin + i / begin;
      const int column = i % begin;
      float sum = 0.0F;
      for (int m = column; m < begin; ++m) sum = fmaf(a[row * kPitch + m], x[m * kPitch + column], sum);
      x[row * kPitch + column] = -sum;
    }
    __syncthreads();
    if (thread < begin + kBlock) {
      for (int row = begin + 1; row < begin + kBlock; ++row) {
        float sum = x[row * kPitch + thread];
        for (int m = begin; m < row; ++m) sum = fmaf(-a[row * kPitch + m], x[m * kPitch + thread], sum);
        x[row * kPitch + thread] = sum;
      }
    }
    __syncthreads();
  }
  for (int i = thread; i < chunk.length * kC; i += kProductThreads) {
    const std::int64_t row = p.a_inv.offset(chunk.row, chunk.begin + i / kC, head);
    p.a_inv.store(row + i % kC, x[i / kC * kPitch + i % kC]);
  }
}

Solve solve(const SolveTrilArgs& args) {
  Solve p;
  p.table = chunk_table(args.cu_seqlens, args.a, args.chunk_size);
  p.hk = p.hv = static_cast<int>(args.a.dim(2));
  p.a = elements(args.a);
  p.a_inv = elements(args.a_inv);
  return p;
}

std::string solve_supports(const SolveTrilArgs& args, const Stream&) { return fits_grid(solve(args).blocks()); }

void run_solve(const SolveTrilArgs& args, Workspace, const Stream& stream) {
  launch_chunk_heads(args, solve(args), stream, [&]<int kC>() { return solve_kernel<kC>; });
}

constexpr Kernel<SolveTrilArgs> kSolve[] = {{"blocks16", solve_supports, no_workspace<SolveTrilArgs>, run_solve}};

// ---- recompute_w_u

struct RecomputeWU : ChunkHeads {
  Elements k, v, beta, g, a_inv, w, u;
  int k_size = 0;
  int v_size = 0;
};

template <int kC>
__global__ void __launch_bounds__(kProductThreads) w_u_kernel(const __grid_constant__ RecomputeWU p) {
  constexpr int kColumns = 64;
  using Product = BlockProduct<kC, kColumns>;
  __shared__ typename Product::Panels panels;
  __shared__ float beta[kC];
  __shared__ float decayed[kC];  // beta exp(G)
  const ChunkSpan chunk = p.chunk();
  const int head = p.value_head();
  const int k_head = p.key_head();
  if (threadIdx.x < static_cast<unsigned>(chunk.length)) {
    const std::int64_t token = chunk.begin + threadIdx.x;
    beta[threadIdx.x] = p.beta.load(p.beta.offset(chunk.row, token) + head);
    decayed[threadIdx.x] = beta[threadIdx.x] * expf(p.g.load(p.g.offset(chunk.row, token) + head));
  }
  __syncthreads();
  const auto inverse = [&](int i, int j) {
    if (i >= chunk.length || j > i) return 0.0F;
    return p.rounded(p.a_inv.load(p.a_inv.offset(chunk.row, chunk.begin + i, head) + j));
  };
  const auto multiply = [&](const Elements& from_rows, int from_head, const float* factor, int width,
                            const Elements& to) {
    for (int first = 0; first < width; first += kColumns) {
      Product product;
      product.template add<false>(panels, chunk.length, inverse, [&](int j, int column) {
        if (first + column >= width) return 0.0F;
        const std::int64_t row = from_rows.offset(chunk.row, chunk.begin + j, from_head);
        return p.rounded(factor[j] * from_rows.load(row + first + column));
      });
      product.for_each([&](int i, int column, float value) {
        if (i >= chunk.length || first + column >= width) return;
        to.store(to.offset(chunk.row, chunk.begin + i, head) + first + column, value);
      });
    }
  };
  multiply(p.v, head, beta, p.v_size, p.u);
  multiply(p.k, k_head, decayed, p.k_size, p.w);
}

RecomputeWU recompute_w_u(const RecomputeWUArgs& args) {
  RecomputeWU p;
  static_cast<ChunkHeads&>(p) = chunk_heads(args, args.v.dim(2));
  p.k = elements(args.k);
  p.v = elements(args.v);
  p.beta = elements(args.beta);
  p.g = elements(args.g_cumsum);
  p.a_inv = elements(args.a_inv);
  p.w = elements(args.w);
  p.u = elements(args.u);
  p.k_size = static_cast<int>(args.k.dim(3));
  p.v_size = static_cast<int>(args.v.dim(3));
  return p;
}

std::string w_u_supports(const RecomputeWUArgs& args, const Stream&) { return fits_grid(recompute_w_u(args).blocks()); }

void run_w_u(const RecomputeWUArgs& args, Workspace, const Stream& stream) {
  launch_chunk_heads(args, recompute_w_u(args), stream, [&]<int kC>() { return w_u_kernel<kC>; });
}

constexpr Kernel<RecomputeWUArgs> kRecomputeWU[] = {{"f32", w_u_supports, no_workspace<RecomputeWUArgs>, run_w_u}};

}  // namespace

KernelList<ChunkLocalCumsumArgs> chunk_local_cumsum_kernels() { return kCumsum; }
KernelList<L2normArgs> l2norm_kernels() { return kL2norm; }
KernelList<ChunkScaledDotKktArgs> chunk_scaled_dot_kkt_kernels() { return kKkt; }
KernelList<SolveTrilArgs> solve_tril_kernels() { return kSolve; }
KernelList<RecomputeWUArgs> recompute_w_u_kernels() { return kRecomputeWU; }

}  // namespace thalweg::cu
