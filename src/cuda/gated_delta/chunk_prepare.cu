// First pass of the chunked gated delta rule: the records of all chunks, which do not depend on the state.
//
// Roles: a block has one chunk and key head. Each of its five warps has two of the ten blocks of 16 x 16 on and below
//   the diagonal of k k^T and q k^T; the first four have the gates of one of four value heads.
// Shared memory: tiles of k and q; after the products the record and the matrix A (chunk_matrices.h).
// Pipeline: loads of gates and tiles; products; then for each value head the matrices, the inverse and the record,
//   which a bulk copy stores while the next head is begun.

#include "cuda/common/async_copy.h"
#include "cuda/common/mbarrier.h"
#include "cuda/common/mma.h"
#include "cuda/common/pdl.h"
#include "cuda/common/warp.h"
#include "cuda/gated_delta/chunk_kernels.h"
#include "cuda/gated_delta/chunk_matrices.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 160;
constexpr int kWarps = kThreads / 32;
constexpr int kCopiers = 128;    // threads that copy tiles, a power of two
constexpr int kHeadsAtOnce = 4;  // value heads whose decays are computed together

// Shared memory: the tiles of k and q; after the products the record and the matrix A, which its inverse overwrites.
template <int K>
struct Shared {
  static constexpr int kTile = kChunk * K * 2;
  static constexpr int kMatrix = (ChunkRecord::kBytes + 127) / 128 * 128;
  static constexpr int kEnd = kMatrix + static_cast<int>(sizeof(OneMatrix));
  static constexpr int kBytes = kEnd > 2 * kTile ? kEnd : 2 * kTile;
};

struct Scalars {
  HeadScalars heads[kHeadsAtOnce];
  KeyFactors factors;
};

__device__ inline BlockIndex block_index(int index) {
  const int i = index < 1 ? 0 : index < 3 ? 1 : index < 6 ? 2 : 3;
  return {i, index - i * (i + 1) / 2};
}

// Stores the finished record to global memory, by the whole block; from compute capability 9.0 on asynchronously, until
// wait_for_bulk_reads().
__device__ void store_record(std::byte* to, const std::byte* shared, int thread) {
#if __CUDA_ARCH__ >= 900
  fence_proxy_async();
  __syncthreads();
  if (thread == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(shared)),
                 "n"(ChunkRecord::kBytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
#else
  __syncthreads();
  for (int i = thread; i < ChunkRecord::kBytes / 16; i += kThreads) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(shared)[i];
  }
  __syncthreads();
#endif
}
__device__ inline void wait_for_bulk_reads() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

// Makes one value head's record in `shared`, by the whole block.
template <class T>
__device__ void prepare_head(const float (&kk)[2][2][4], const float (&qk)[2][2][4], const Scalars& scalars,
                             const HeadScalars& head, float scale, std::byte* shared, const BlockMatrix& matrix) {
  // opaque: addresses are computed again for each head, as they do not fit into the registers over the loop.
  const int thread = opaque(static_cast<int>(threadIdx.x));
  const int warp = warp_of(thread);
  const int lane = thread % 32;
  const KeyFactors& factors = scalars.factors;
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const BlockIndex block = block_index(warp + b * kWarps);
    const auto apply = [&]<bool kDiagonal>(const BlockDecays<kDiagonal>& decays) {
      RowFactors rows(block.i, head, scale, lane);
      rows.multiply_rows(factors, block.i, lane);
      float a[2][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = kk[b][i / 4][i % 4];
      scale_a(a, rows, decays, lane);
      store_block(matrix, block, a, lane);
      store_p<T>(qk[b], block, rows, decays, shared + ChunkRecord::kP, lane);
    };
    if (block.i == block.j) {
      BlockDecays<true> decays(block, head, lane);
      decays.multiply_columns(factors, block.j, lane);
      apply(decays);
    } else {
      apply(BlockDecays<false>(block, head, lane));
    }
  }
  __syncthreads();
  if (warp < 2) {
    invert_diagonal(matrix, 2 * warp, lane);
  } else if (warp < 4) {
#pragma unroll
    for (const bool of_k : {true, false}) store_scalars(factors, head, scale, shared, thread - 64, of_k);
  }
  __syncthreads();
  if (warp < 2) {
    merge_blocks_of_16<T>(matrix, head.beta, shared + ChunkRecord::kT, warp, lane);
  } else if (warp < 4) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      store_diagonal<T>(matrix, head.beta, shared + ChunkRecord::kT, 2 * (warp - 2) + i, lane);
    }
  }
  __syncthreads();
  if (warp < 4) merge_blocks_of_32<T>(matrix, head.beta, shared + ChunkRecord::kT, warp, lane);
}

// Starts the copies of a chunk's rows of k and q, zeros past its end, by the first kCopiers threads.
template <class T, int K>
__device__ inline void copy_tiles(const ChunkArguments& args, int sequence_row, int begin, int length, int key_head,
                                  std::uint32_t tiles, int thread) {
  constexpr int kColumns = K < 128 ? K : 128;  // at a time
  constexpr int kPieces = kColumns / 8;
  constexpr int kRows = kCopiers / kPieces;  // a multiple of 8: a thread's swizzle is always the same
  const int row = thread / kPieces;
  const int piece = thread % kPieces;
  const auto source = [&](const TensorView<const void>& tensor) {
    return static_cast<const T*>(tensor.data) + sequence_row * tensor.strides[0] + (begin + row) * tensor.strides[1] +
           key_head * tensor.strides[2] + piece * 8;
  };
  const T* k = source(args.k);
  const T* q = source(args.q);
  const std::uint32_t to = tiles + static_cast<std::uint32_t>(piece / 8 * (kChunk * 128)) + swizzled(row, piece % 8);
  const std::int64_t k_step = kRows * args.k.strides[1];
  const std::int64_t q_step = kRows * args.q.strides[1];
#pragma unroll
  for (int column = 0; column < K; column += kColumns) {
    const std::uint32_t tile = to + static_cast<std::uint32_t>(column * kChunk * 2);
#pragma unroll
    for (int i = 0; i < kChunk / kRows; ++i) {
      const bool valid = row + i * kRows < length;
      const std::int64_t steps = valid ? i : 0;  // a row past the end is not read, but its address may be checked
      copy_16_bytes(tile + static_cast<std::uint32_t>(i * kRows * 128), k + steps * k_step + column, valid);
      copy_16_bytes(tile + static_cast<std::uint32_t>(Shared<K>::kTile + i * kRows * 128), q + steps * q_step + column,
                    valid);
    }
  }
  commit_copies();
}

// A warp's two blocks of k k^T and q k^T, added to kk and qk.
template <class T, int K>
__device__ inline void multiply_tiles(std::uint32_t tiles, int warp, int lane, float (&kk)[2][2][4],
                                      float (&qk)[2][2][4]) {
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const BlockIndex block = block_index(warp + b * kWarps);
    // Step s has vectors 2s and 2s + 1 of a row; their swizzled offsets differ from the first step's in two bits.
    const std::uint32_t k_row = tiles + swizzled(16 * block.i + lane % 16, lane / 16);
    const std::uint32_t q_row = k_row + Shared<K>::kTile;
    const std::uint32_t column = tiles + swizzled(16 * block.j + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int half = 0; half < K / 64; ++half) {
        const auto at = [&](std::uint32_t first) {
          return (first ^ static_cast<std::uint32_t>(s * 32)) + static_cast<std::uint32_t>(half * kChunk * 128);
        };
        std::uint32_t k_rows[4];
        std::uint32_t q_rows[4];
        std::uint32_t columns[4];
        load_blocks(k_rows, at(k_row));
        load_blocks(q_rows, at(q_row));
        load_blocks(columns, at(column));
        multiply_add<T>(kk[b][0], k_rows, columns[0], columns[1]);
        multiply_add<T>(kk[b][1], k_rows, columns[2], columns[3]);
        multiply_add<T>(qk[b][0], q_rows, columns[0], columns[1]);
        multiply_add<T>(qk[b][1], q_rows, columns[2], columns[3]);
      }
    }
  }
}

template <class T, int K>
__global__ void __launch_bounds__(kThreads, K > 128 ? 3 : 4)
    chunk_prepare(const __grid_constant__ ChunkArguments args) {
  using S = Shared<K>;
  extern __shared__ __align__(1024) std::byte shared[];
  __shared__ Scalars scalars;
  pdl_trigger();
  // Blocks come in the opposite order of the second pass's reads, the last chunks of all sequences first, so that the
  // L2 cache still holds what it reads first. Exact for sequences of one length, a permutation for any.
  const int key_head = static_cast<int>(blockIdx.x) % args.hk;
  const int place = static_cast<int>(blockIdx.x) / args.hk;
  const int per_sequence = (static_cast<int>(args.chunks) + args.map.sequences - 1) / args.map.sequences;
  const int slot = place % args.map.sequences * per_sequence + per_sequence - 1 - place / args.map.sequences;
  if (slot >= args.chunks) return;
  const int n = args.map.sequence_of(slot, kChunk);
  const SequenceMap::Sequence sequence = args.map.sequence(n);
  const int first = (slot - args.map.first_index(n, kChunk)) * kChunk;
  if (first < 0 || first >= sequence.length) return;
  const int begin = sequence.begin + first;
  const int length = min(kChunk, sequence.length - first);

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const std::uint32_t tiles = shared_address(shared);
  const int heads = args.hv / args.hk;
  const auto value_head = [&](int j) { return args.tiled ? key_head + j * args.hk : key_head * heads + j; };
  // A warp has the gates of one head of a batch. Their loads come first, as their latency is the longest.
  const auto has_gates = [&](int j) { return warp < min(heads - j, kHeadsAtOnce); };
  LaneGates gates{};
  if (has_gates(0)) gates = load_gates(args, sequence.row, begin, length, value_head(warp), lane);
  if (thread < kCopiers) copy_tiles<T, K>(args, sequence.row, begin, length, key_head, tiles, thread);
  if (has_gates(0)) {
    sum_gates(gates, scalars.heads[warp], lane);
    compute_decays(scalars.heads[warp], lane);
  }
  wait_for_copies<0>();
  __syncthreads();

  float kk[2][2][4] = {};
  float qk[2][2][4] = {};
  multiply_tiles<T, K>(tiles, warp, lane, kk, qk);
  find_factors<T, K>(args, shared, shared + S::kTile, length, thread, scalars.factors);
  __syncthreads();

  const BlockMatrix matrix = reinterpret_cast<OneMatrix*>(shared + S::kMatrix)->get();
  clear_upper_blocks<kThreads>(shared, thread);
  for (int j = 0; j < heads; ++j) {
    const int in_batch = j % kHeadsAtOnce;
    if (j > 0 && in_batch == 0 && has_gates(j)) {
      sum_gates(load_gates(args, sequence.row, begin, length, value_head(j + warp), lane), scalars.heads[warp], lane);
      compute_decays(scalars.heads[warp], lane);
    }
    if (args.normalize && in_batch == 0) {
      __syncthreads();
      for (int i = thread; i < kHeadsAtOnce * HeadScalars::kLeft; i += kThreads) {
        const int left = i % HeadScalars::kLeft;
        scalars.heads[i / HeadScalars::kLeft].left[left] *= scalars.factors.k[HeadScalars::left_column(left)];
      }
    }
    if (j > 0 && thread == 0) wait_for_bulk_reads();
    __syncthreads();  // the record and both matrices are free
    prepare_head<T>(kk, qk, scalars, scalars.heads[in_batch], args.scale, shared, matrix);
    std::byte* record = args.records + (static_cast<std::int64_t>(slot) * args.hv + value_head(j)) *
                                           static_cast<std::int64_t>(ChunkRecord::kPitch);
    if (thread == 0) {
      args.chunk_gates[static_cast<std::int64_t>(slot) * args.hv + value_head(j)] =
          scalars.heads[in_batch].g[kChunk - 1];
    }
    store_record(record, shared, thread);
  }
  wait_for_bulk_reads();
}

template <class T, int K>
void launch(const ChunkArguments& args, cudaStream_t stream) {
  static constexpr std::string_view kOperation = "chunk_gated_delta_rule";
  if (args.chunks == 0) return;
  constexpr int kBytes = Shared<K>::kBytes;
  allow_shared_memory(reinterpret_cast<const void*>(chunk_prepare<T, K>), kBytes, kOperation);
  const std::int64_t per_sequence = (args.chunks + args.map.sequences - 1) / args.map.sequences;
  const auto grid = static_cast<unsigned>(per_sequence * args.map.sequences * args.hk);
  chunk_prepare<T, K><<<grid, kThreads, kBytes, stream>>>(args);
  check(cudaGetLastError(), kOperation);
}

}  // namespace

void launch_chunk_prepare(const ChunkArguments& args, DType dtype, cudaStream_t stream) {
  const bool bf16 = dtype == DType::kBF16;
  if (args.key_width == 256) {
    bf16 ? launch<__nv_bfloat16, 256>(args, stream) : launch<__half, 256>(args, stream);
  } else if (args.key_width == 128) {
    bf16 ? launch<__nv_bfloat16, 128>(args, stream) : launch<__half, 128>(args, stream);
  } else {
    bf16 ? launch<__nv_bfloat16, 64>(args, stream) : launch<__half, 64>(args, stream);
  }
}

}  // namespace thalweg::cu
