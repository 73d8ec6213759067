#include "core/threads.h"
#include "cpu/gated_delta.h"
#include "cpu/gated_delta_rule.h"

namespace thalweg::cpu {
namespace {

std::int64_t floats(const ChunkOutputArgs& args) {
  const std::int64_t c = args.chunk_size;
  const std::int64_t k = args.k.dim(3);
  const std::int64_t v = args.v_new.dim(3);
  return arena_floats(k * v, c * k, c * k, c * k, c * v, c * v, c * c, c, state_staging(v, k));
}

std::size_t workspace(const ChunkOutputArgs& args, const Stream& stream) { return worker_bytes(floats(args), stream); }

void run(const ChunkOutputArgs& args, Workspace memory, const Stream& stream) {
  const VectorOps& vec = vector_ops();
  const std::int64_t c = args.chunk_size;
  const std::int64_t ks = args.k.dim(3);
  const std::int64_t vs = args.v_new.dim(3);
  const std::int64_t hk = args.k.dim(2);
  const std::int64_t hv = args.v_new.dim(2);
  const float scale = resolve_scale(args.scale, ks);
  const Sequences sequences(args.cu_seqlens, args.k.dim(0), args.k.dim(1));
  parallel_for(stream, sequences.total_chunks(c) * hv, [&](std::int64_t task, int worker) {
    Arena scratch = worker_arena(memory, floats(args), worker);
    float* state = scratch.take<float>(ks * vs);  // [K,V]
    float* q = scratch.take<float>(c * ks);
    float* k = scratch.take<float>(c * ks);
    float* kt = scratch.take<float>(c * ks);
    float* v_new = scratch.take<float>(c * vs);
    float* o = scratch.take<float>(c * vs);
    float* attention = scratch.take<float>(c * c);
    float* g = scratch.take<float>(c);
    float* staging = scratch.take<float>(state_staging(vs, ks));
    const Chunk chunk = sequences.chunk(task / hv, c);
    const std::int64_t h = task % hv;
    const std::int64_t kh = key_head(args.head_map, h, hk, hv);
    load_head(args.q, chunk, kh, q);
    load_head(args.k, chunk, kh, k);
    load_head(args.v_new, chunk, h, v_new);
    load_scalars(args.g_cumsum, chunk, h, g);
    const ConstTensor pool = state_pool(args.h, chunk.row, chunk.number);
    load_state(pool, StateLayout::kVK, 0, h, vs, ks, Orientation::kKV, state, staging);
    transpose_padded(k, chunk.length, ks, c, kt);
    vec.gemm(chunk.length, c, ks, q, ks, 1, kt, c, attention, c, false);
    apply_decay(attention, chunk.length, c, g, true);
    if (args.rounding == Rounding::kSeed) vec.round_to_bf16(attention, chunk.length * c);
    vec.gemm(chunk.length, vs, ks, q, ks, 1, state, vs, o, vs, false);
    for (std::int64_t i = 0; i < chunk.length; ++i) vec.scale(std::exp(g[i]), o + i * vs, vs, o + i * vs);
    vec.gemm(chunk.length, vs, chunk.length, attention, c, 1, v_new, vs, o, vs, true);
    vec.scale(scale, o, chunk.length * vs, o);
    store_head(args.o, chunk, h, o);
  });
}

constexpr Kernel<ChunkOutputArgs> kKernels[] = {{"gemm", always_supported<ChunkOutputArgs>, workspace, run}};

}  // namespace

KernelList<ChunkOutputArgs> chunk_output_kernels() { return kKernels; }

}  // namespace thalweg::cpu
