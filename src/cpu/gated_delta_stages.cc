#include <algorithm>

#include "core/threads.h"
#include "cpu/gated_delta.h"
#include "cpu/gated_delta_rule.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

// ---- chunk_local_cumsum

void run_cumsum(const ChunkLocalCumsumArgs& args, Workspace, const Stream& stream) {
  const std::int64_t heads = args.g.dim(2);
  const Sequences sequences(args.cu_seqlens, args.g.dim(0), args.g.dim(1));
  const double task_ns =
      static_cast<double>(std::min<std::int64_t>(args.chunk_size, args.g.dim(1)) * heads) * tuning::kElementNs;
  parallel_for(stream, sequences.total_chunks(args.chunk_size), task_ns, [&](std::int64_t task, int) {
    const Chunk chunk = sequences.chunk(task, args.chunk_size);
    const float* previous = nullptr;
    for (std::int64_t i = 0; i < chunk.length; ++i) {
      const auto* g = static_cast<const float*>(args.g.row(chunk.row, chunk.begin + i));
      auto* sum = static_cast<float*>(args.g_cumsum.row(chunk.row, chunk.begin + i));
      for (std::int64_t h = 0; h < heads; ++h) sum[h] = (previous != nullptr ? previous[h] : 0.0F) + g[h];
      previous = sum;
    }
  });
}

constexpr Kernel<ChunkLocalCumsumArgs> kCumsum[] = {
    {"sequential", always_supported<ChunkLocalCumsumArgs>, no_workspace<ChunkLocalCumsumArgs>, run_cumsum}};

// ---- l2norm

std::size_t l2norm_workspace(const L2normArgs& args, const Stream& stream) {
  return worker_bytes(arena_floats(args.x.dim(3)), stream);
}

void run_l2norm(const L2normArgs& args, Workspace workspace, const Stream& stream) {
  const std::int64_t heads = args.x.dim(2);
  const std::int64_t width = args.x.dim(3);
  const double task_ns = static_cast<double>(heads * width) * tuning::kElementNs;
  parallel_for(stream, args.x.dim(0) * args.x.dim(1), task_ns, [&](std::int64_t task, int worker) {
    Arena scratch = worker_arena(workspace, arena_floats(width), worker);
    float* row = scratch.take<float>(width);
    const std::int64_t b = task / args.x.dim(1);
    const std::int64_t t = task % args.x.dim(1);
    for (std::int64_t h = 0; h < heads; ++h) {
      vector_ops().load(args.x.dtype, args.x.row(b, t, h), width, row);
      normalize(QkNorm::kL2, args.eps, {}, h, width, row, nullptr);
      vector_ops().store(args.y.dtype, row, width, args.y.row(b, t, h));
    }
  });
}

constexpr Kernel<L2normArgs> kL2norm[] = {{"rows", always_supported<L2normArgs>, l2norm_workspace, run_l2norm}};

// ---- chunk_scaled_dot_kkt

std::int64_t kkt_floats(std::int64_t c, std::int64_t k) {
  return arena_floats(c * k, c * k, c * k, c * c, c * c, c, c);
}

std::size_t kkt_workspace(const ChunkScaledDotKktArgs& args, const Stream& stream) {
  return worker_bytes(kkt_floats(args.chunk_size, args.k.dim(3)), stream);
}

void run_kkt(const ChunkScaledDotKktArgs& args, Workspace workspace, const Stream& stream) {
  const VectorOps& vec = vector_ops();
  const std::int64_t c = args.chunk_size;
  const std::int64_t ks = args.k.dim(3);
  const std::int64_t hk = args.k.dim(2);
  const std::int64_t hv = args.beta.dim(2);
  const bool seed = args.rounding == Rounding::kSeed;
  const Sequences sequences(args.cu_seqlens, args.k.dim(0), args.k.dim(1));
  // A task is a key head of a chunk: its value heads share the loads and, in f32, the whole product k k^T.
  parallel_for(stream, sequences.total_chunks(c) * hk, [&](std::int64_t task, int worker) {
    Arena scratch = worker_arena(workspace, kkt_floats(c, ks), worker);
    float* k = scratch.take<float>(c * ks);
    float* kt = scratch.take<float>(c * ks);
    float* scaled = scratch.take<float>(c * ks);
    float* product = scratch.take<float>(c * c);
    float* a = scratch.take<float>(c * c);
    float* beta = scratch.take<float>(c);
    float* g = scratch.take<float>(c);
    const Chunk chunk = sequences.chunk(task / hk, c);
    load_head(args.k, chunk, task % hk, k);
    transpose_padded(k, chunk.length, ks, c, kt);
    if (!seed) vec.gemm(chunk.length, c, ks, k, ks, 1, kt, c, product, c, false);
    for (std::int64_t h = 0; h < hv; ++h) {
      if (key_head(args.head_map, h, hk, hv) != task % hk) continue;
      load_scalars(args.beta, chunk, h, beta);
      load_scalars(args.g_cumsum, chunk, h, g);
      if (seed) {
        for (std::int64_t i = 0; i < chunk.length; ++i) vec.scale(beta[i], k + i * ks, ks, scaled + i * ks);
        vec.round_to_bf16(scaled, chunk.length * ks);
        vec.gemm(chunk.length, c, ks, scaled, ks, 1, kt, c, a, c, false);
      } else {
        for (std::int64_t i = 0; i < chunk.length; ++i) vec.scale(beta[i], product + i * c, c, a + i * c);
      }
      apply_decay(a, chunk.length, c, g, false);
      store_head(args.a, chunk, h, a);
    }
  });
}

constexpr Kernel<ChunkScaledDotKktArgs> kKkt[] = {
    {"gemm", always_supported<ChunkScaledDotKktArgs>, kkt_workspace, run_kkt}};

// ---- solve_tril

std::int64_t solve_floats(std::int64_t c) { return arena_floats(c * c, c * c, 16 * c); }

std::size_t solve_workspace(const SolveTrilArgs& args, const Stream& stream) {
  return worker_bytes(solve_floats(args.chunk_size), stream);
}

void run_solve(const SolveTrilArgs& args, Workspace workspace, const Stream& stream) {
  const std::int64_t c = args.chunk_size;
  const std::int64_t heads = args.a.dim(2);
  const Sequences sequences(args.cu_seqlens, args.a.dim(0), args.a.dim(1));
  parallel_for(stream, sequences.total_chunks(c) * heads, [&](std::int64_t task, int worker) {
    Arena scratch = worker_arena(workspace, solve_floats(c), worker);
    float* a = scratch.take<float>(c * c);
    float* inverse = scratch.take<float>(c * c);
    float* negated = scratch.take<float>(16 * c);
    const Chunk chunk = sequences.chunk(task / heads, c);
    load_head(args.a, chunk, task % heads, a);
    std::fill_n(inverse, c * c, 0.0F);
    for (std::int64_t i = 0; i < c; ++i) inverse[i * c + i] = 1.0F;
    solve_unit_lower(a, chunk.length, c, inverse, c, negated);
    store_head(args.a_inv, chunk, task % heads, inverse);
  });
}

constexpr Kernel<SolveTrilArgs> kSolve[] = {{"blocks16", always_supported<SolveTrilArgs>, solve_workspace, run_solve}};

// ---- recompute_w_u

std::int64_t w_u_floats(std::int64_t c, std::int64_t k, std::int64_t v) {
  const std::int64_t widest = std::max(k, v);
  return arena_floats(c * widest, c * widest, c * c, c, c);
}

std::size_t w_u_workspace(const RecomputeWUArgs& args, const Stream& stream) {
  return worker_bytes(w_u_floats(args.chunk_size, args.k.dim(3), args.v.dim(3)), stream);
}

void run_w_u(const RecomputeWUArgs& args, Workspace workspace, const Stream& stream) {
  const VectorOps& vec = vector_ops();
  const std::int64_t c = args.chunk_size;
  const std::int64_t ks = args.k.dim(3);
  const std::int64_t vs = args.v.dim(3);
  const std::int64_t hk = args.k.dim(2);
  const std::int64_t hv = args.v.dim(2);
  const bool seed = args.rounding == Rounding::kSeed;
  const Sequences sequences(args.cu_seqlens, args.k.dim(0), args.k.dim(1));
  parallel_for(stream, sequences.total_chunks(c) * hv, [&](std::int64_t task, int worker) {
    Arena scratch = worker_arena(workspace, w_u_floats(c, ks, vs), worker);
    float* right = scratch.take<float>(c * std::max(ks, vs));
    float* result = scratch.take<float>(c * std::max(ks, vs));
    float* inverse = scratch.take<float>(c * c);
    float* beta = scratch.take<float>(c);
    float* g = scratch.take<float>(c);
    const Chunk chunk = sequences.chunk(task / hv, c);
    const std::int64_t h = task % hv;
    load_head(args.a_inv, chunk, h, inverse);
    for (std::int64_t i = 0; i < chunk.length; ++i) std::fill(inverse + i * c + i + 1, inverse + (i + 1) * c, 0.0F);
    if (seed) vec.round_to_bf16(inverse, chunk.length * c);
    load_scalars(args.beta, chunk, h, beta);
    load_scalars(args.g_cumsum, chunk, h, g);

    const auto multiply = [&](std::int64_t width, const Tensor& to) {
      if (seed) vec.round_to_bf16(right, chunk.length * width);
      vec.gemm(chunk.length, width, chunk.length, inverse, c, 1, right, width, result, width, false);
      store_head(to, chunk, h, result);
    };
    load_head(args.v, chunk, h, right);
    for (std::int64_t i = 0; i < chunk.length; ++i) vec.scale(beta[i], right + i * vs, vs, right + i * vs);
    multiply(vs, args.u);
    load_head(args.k, chunk, key_head(args.head_map, h, hk, hv), right);
    for (std::int64_t i = 0; i < chunk.length; ++i) {
      vec.scale(beta[i] * std::exp(g[i]), right + i * ks, ks, right + i * ks);
    }
    multiply(ks, args.w);
  });
}

constexpr Kernel<RecomputeWUArgs> kRecomputeWU[] = {
    {"gemm", always_supported<RecomputeWUArgs>, w_u_workspace, run_w_u}};

}  // namespace

void add_gated_delta_stage_kernels(Backend& backend) {
  std::get<KernelList<ChunkLocalCumsumArgs>>(backend.kernels) = kCumsum;
  std::get<KernelList<L2normArgs>>(backend.kernels) = kL2norm;
  std::get<KernelList<ChunkScaledDotKktArgs>>(backend.kernels) = kKkt;
  std::get<KernelList<SolveTrilArgs>>(backend.kernels) = kSolve;
  std::get<KernelList<RecomputeWUArgs>>(backend.kernels) = kRecomputeWU;
}

}  // namespace thalweg::cpu
