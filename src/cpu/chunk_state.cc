#include "core/threads.h"
#include "cpu/gated_delta.h"
#include "cpu/gated_delta_rule.h"

namespace thalweg::cpu {
namespace {

std::int64_t floats(const ChunkStateArgs& args) {
  const std::int64_t c = args.chunk_size;
  const std::int64_t k = args.k.dim(3);
  const std::int64_t v = args.u.dim(3);
  return arena_floats(k * v, c * k, c * k, c * v, c, state_staging(v, k));
}

std::size_t workspace(const ChunkStateArgs& args, const Stream& stream) { return worker_bytes(floats(args), stream); }

// Sequences and heads are independent; within one the chunks follow each other.
void run(const ChunkStateArgs& args, Workspace memory, const Stream& stream) {
  const VectorOps& vec = vector_ops();
  const std::int64_t c = args.chunk_size;
  const std::int64_t ks = args.k.dim(3);
  const std::int64_t vs = args.u.dim(3);
  const std::int64_t hk = args.k.dim(2);
  const std::int64_t hv = args.u.dim(2);
  const Sequences sequences(args.cu_seqlens, args.k.dim(0), args.k.dim(1));
  parallel_for(stream, sequences.count() * hv, [&](std::int64_t task, int worker) {
    Arena scratch = worker_arena(memory, floats(args), worker);
    float* state = scratch.take<float>(ks * vs);  // [K,V]
    float* k = scratch.take<float>(c * ks);
    float* w = scratch.take<float>(c * ks);
    float* v_new = scratch.take<float>(c * vs);
    float* g = scratch.take<float>(c);
    float* staging = scratch.take<float>(state_staging(vs, ks));
    const std::int64_t n = task / hv;
    const std::int64_t h = task % hv;
    const std::int64_t slot = state_slot(args.state_indices, n);
    load_state(args.initial_state, args.state_layout, slot, h, vs, ks, Orientation::kKV, state, staging);
    const std::int64_t first = sequences.first_chunk(n, c);
    for (std::int64_t at = 0; at < sequences.length(n); at += c) {
      const std::int64_t length = std::min(c, sequences.length(n) - at);
      const Chunk chunk{n, sequences.row(n), sequences.begin(n) + at, length, first + at / c};
      if (args.h.defined()) {
        const Tensor pool = state_pool(args.h, chunk.row, chunk.number);
        store_state(pool, StateLayout::kVK, 0, h, vs, ks, Orientation::kKV, state, staging);
      }
      load_head(args.k, chunk, key_head(args.head_map, h, hk, hv), k);
      load_head(args.w, chunk, h, w);
      load_head(args.u, chunk, h, v_new);
      load_scalars(args.g_cumsum, chunk, h, g);
      vec.scale(-1.0F, w, length * ks, w);
      vec.gemm(length, vs, ks, w, ks, 1, state, vs, v_new, vs, true);
      if (args.v_new.defined()) store_head(args.v_new, chunk, h, v_new);
      const float last = g[length - 1];
      for (std::int64_t i = 0; i < length; ++i) vec.scale(std::exp(last - g[i]), v_new + i * vs, vs, v_new + i * vs);
      if (args.rounding == Rounding::kSeed) vec.round_to_bf16(v_new, length * vs);
      vec.scale(std::exp(last), state, ks * vs, state);
      vec.gemm(ks, vs, length, k, 1, ks, v_new, vs, state, vs, true);
    }
    store_state(args.final_state, args.state_layout, slot, h, vs, ks, Orientation::kKV, state, staging);
  });
}

constexpr Kernel<ChunkStateArgs> kKernels[] = {{"gemm", always_supported<ChunkStateArgs>, workspace, run}};

}  // namespace

KernelList<ChunkStateArgs> chunk_state_kernels() { return kKernels; }

}  // namespace thalweg::cpu
