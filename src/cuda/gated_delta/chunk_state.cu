// chunk_state, the recurrence from chunk to chunk. A block has 32 rows of a head's state of one sequence in shared
// memory.

#include <algorithm>

#include "cuda/gated_delta/block_product.h"
#include "cuda/gated_delta/stages.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kRows = 32;     // of V
constexpr int kColumns = 64;  // of K, of one product

struct ChunkStates {
  ChunkTable table;
  SequenceTable sequences;
  Elements k, w, u, g, initial_state, h, v_new, final_state;
  std::int64_t chunks = 0;  // NC
  int hk = 0;
  int hv = 0;
  int k_size = 0;
  int v_size = 0;
  int row_blocks = 1;
  HeadMap head_map = HeadMap::kGrouped;
  bool is_kv = false;
  bool seed = false;
};

template <int kC>
struct StateMemory {
  union {
    typename BlockProduct<kC, kRows>::Panels fresh;
    typename BlockProduct<kRows, kColumns>::Panels change;
  } panels;
  float v_new[kC][kRows];
  float g[kC];
  // followed by the state [kRows][K]
};

template <int kC>
__global__ void __launch_bounds__(kProductThreads) chunk_state_kernel(const __grid_constant__ ChunkStates p) {
  extern __shared__ float4 shared[];
  auto& memory = *reinterpret_cast<StateMemory<kC>*>(shared);
  float* const state = reinterpret_cast<float*>(&memory + 1);
  const int thread = static_cast<int>(threadIdx.x);
  const int first = static_cast<int>(blockIdx.x % static_cast<unsigned>(p.row_blocks)) * kRows;
  const int head = static_cast<int>(blockIdx.x / static_cast<unsigned>(p.row_blocks) % static_cast<unsigned>(p.hv));
  const std::int64_t n = blockIdx.x / static_cast<unsigned>(p.row_blocks * p.hv);
  const int k_head = key_head(p.head_map, head, p.hk, p.hv);
  const int rows = min(kRows, p.v_size - first);
  const SequenceSpan sequence = find_sequence(p.sequences, n);
  if (!sequence.valid) return;
  std::int64_t number = chunks_before(p.table, n);

  // The state's element [v,k] in a pool; neighboring threads have neighboring elements.
  const auto for_each_stored = [&](const Elements& pool, bool is_kv, auto body) {
    for (int i = thread; i < rows * p.k_size; i += kProductThreads) {
      const int v = is_kv ? i % rows : i / p.k_size;
      const int k = is_kv ? i / rows : i % p.k_size;
      body(state[v * p.k_size + k], is_kv ? k * pool.strides[2] + first + v : (first + v) * pool.strides[2] + k);
    }
  };
  if (p.initial_state.defined() && sequence.slot >= 0) {
    const std::int64_t base = p.initial_state.offset(sequence.slot, head);
    for_each_stored(p.initial_state, p.is_kv, [&](float& x, std::int64_t at) { x = p.initial_state.load(base + at); });
  } else {
    for (int i = thread; i < rows * p.k_size; i += kProductThreads) state[i] = 0.0F;
  }
  for (std::int64_t at = 0; at < sequence.length; at += kC, ++number) {
    const int length = static_cast<int>(min(static_cast<std::int64_t>(kC), sequence.length - at));
    const std::int64_t begin = sequence.begin + at;
    __syncthreads();
    if (thread < length) memory.g[thread] = p.g.load(p.g.offset(sequence.row, begin + thread) + head);
    if (p.h.defined() && number < p.chunks) {
      // h is always [V,K]; its rows have a stride of their own.
      const std::int64_t base = p.h.offset(sequence.row, number, head);
      for (int i = thread; i < rows * p.k_size; i += kProductThreads) {
        p.h.store(base + (first + i / p.k_size) * p.h.strides[3] + i % p.k_size, state[i]);
      }
    }
    BlockProduct<kC, kRows> fresh;
    fresh.template add<true>(
        memory.panels.fresh, p.k_size,
        [&](int i, int k) { return i < length ? -p.w.load(p.w.offset(sequence.row, begin + i, head) + k) : 0.0F; },
        [&](int k, int v) { return v < rows ? state[v * p.k_size + k] : 0.0F; });
    const float last = memory.g[length - 1];
    fresh.for_each([&](int i, int v, float value) {
      if (i >= length || v >= rows) return;
      value += p.u.load(p.u.offset(sequence.row, begin + i, head) + first + v);
      if (p.v_new.defined()) p.v_new.store(p.v_new.offset(sequence.row, begin + i, head) + first + v, value);
      const float gated = value * expf(last - memory.g[i]);
      memory.v_new[i][v] = p.seed ? round_to_bf16(gated) : gated;
    });
    const float decay = expf(last);
    for (int first_k = 0; first_k < p.k_size; first_k += kColumns) {
      BlockProduct<kRows, kColumns> change;
      change.template add<false>(
          memory.panels.change, length, [&](int v, int i) { return v < rows ? memory.v_new[i][v] : 0.0F; },
          [&](int i, int k) {
            if (first_k + k >= p.k_size) return 0.0F;
            return p.k.load(p.k.offset(sequence.row, begin + i, k_head) + first_k + k);
          });
      change.for_each([&](int v, int k, float value) {
        if (v >= rows || first_k + k >= p.k_size) return;
        float& x = state[v * p.k_size + first_k + k];
        x = fmaf(decay, x, value);
      });
    }
  }
  __syncthreads();
  if (p.final_state.defined() && sequence.slot >= 0) {
    const std::int64_t base = p.final_state.offset(sequence.slot, head);
    for_each_stored(p.final_state, p.is_kv, [&](float& x, std::int64_t to) { p.final_state.store(base + to, x); });
  }
}

ChunkStates parameters(const ChunkStateArgs& args) {
  ChunkStates p;
  p.table = chunk_table(args.cu_seqlens, args.k, args.chunk_size);
  const ConstTensor& pool = args.initial_state.defined() ? args.initial_state : ConstTensor(args.final_state);
  p.sequences = {p.table.cu_seqlens, integers(args.state_indices), nullptr, p.table.tokens,
                 pool.defined() ? pool.dim(0) : 0};
  p.k = elements(args.k);
  p.w = elements(args.w);
  p.u = elements(args.u);
  p.g = elements(args.g_cumsum);
  p.initial_state = elements(args.initial_state);
  p.h = elements(args.h);
  p.v_new = elements(args.v_new);
  p.final_state = elements(args.final_state);
  p.chunks = args.h.defined() ? args.h.dim(1) : 0;
  p.hk = static_cast<int>(args.k.dim(2));
  p.hv = static_cast<int>(args.u.dim(2));
  p.k_size = static_cast<int>(args.k.dim(3));
  p.v_size = static_cast<int>(args.u.dim(3));
  p.row_blocks = (p.v_size + kRows - 1) / kRows;
  p.head_map = args.head_map;
  p.is_kv = args.state_layout == StateLayout::kKV;
  p.seed = args.rounding == Rounding::kSeed;
  return p;
}

std::int64_t blocks(const ChunkStates& p) { return p.table.sequences * p.hv * p.row_blocks; }

std::string supports(const ChunkStateArgs& args, const Stream&) { return fits_grid(blocks(parameters(args))); }

void run(const ChunkStateArgs& args, Workspace, const Stream& stream) {
  const ChunkStates p = parameters(args);
  if (blocks(p) == 0) return;
  const CurrentDevice current(stream, args.kName);
  with_chunk_size(args.chunk_size, [&]<int kC>() {
    const std::size_t bytes = sizeof(StateMemory<kC>) + sizeof(float) * kRows * static_cast<std::size_t>(p.k_size);
    allow_shared_memory(reinterpret_cast<const void*>(chunk_state_kernel<kC>), bytes, args.kName);
    chunk_state_kernel<kC><<<static_cast<unsigned>(blocks(p)), kProductThreads, bytes, native(stream)>>>(p);
  });
  check(cudaGetLastError(), args.kName);
}

constexpr Kernel<ChunkStateArgs> kKernels[] = {{"f32", supports, no_workspace<ChunkStateArgs>, run}};

}  // namespace

KernelList<ChunkStateArgs> chunk_state_kernels() { return kKernels; }

}  // namespace thalweg::cu
