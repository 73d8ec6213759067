// First pass of the chunked gated delta rule: everything about a chunk that does not need the state.
//
// One block of five warps per chunk and key head; each has two of the ten blocks of 16 x 16 on and below the diagonal
// of k k^T and q k^T, on the tensor cores. Then, for each value head of the key head: gates, decays, the inverse, the
// record, which is put together in shared memory and leaves in one piece.
//
// Decays exp(G_i - G_j) left of the diagonal blocks are products of exp(G_i - R) and exp(R - G_j), R being G at the
// first row of i's block: both exponents are at most 0, and there are far fewer exponentials.
//
// The inverse T of the unit lower triangular 64 x 64 matrix I + A: the diagonal blocks of 16 by substitution in f32, a
// lane a column; then pairs of blocks are merged, 16 to 32 to 64, T_21 = -T_22 (A_21 T_11), with tf32 products.

#include "cuda/chunk_kernels.h"
#include "cuda/device/async_copy.h"
#include "cuda/device/barrier.h"
#include "cuda/device/fragments.h"
#include "cuda/device/launch_order.h"
#include "cuda/device/scalars.h"
#include "cuda/launch.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 160;
constexpr int kWarps = kThreads / 32;
constexpr int kCopiers = 128;       // of them share work that comes in powers of two
constexpr int kPitch = kChunk + 4;  // of f32 matrices in shared memory: ldmatrix reads them without bank conflicts
constexpr int kHeadsAtOnce = 4;     // value heads whose gates are worked out together

// exp(x) for x <= 0, to 2^-22; 0 where that is no normal number.
__device__ inline float decay_of(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634F));
  return result;
}

// Shared memory: first the tiles of k and q; after the products the record and the matrix that A is in and T replaces.
template <int K>
struct Shared {
  static constexpr int kTile = kChunk * K * 2;
  static constexpr int kMatrix = (ChunkRecord::kBytes + 127) / 128 * 128;
  static constexpr int kEnd = kMatrix + kChunk * kPitch * 4;
  static constexpr int kBytes = kEnd > 2 * kTile ? kEnd : 2 * kTile;
};

// Of one value head.
struct HeadScalars {
  float g[kChunk];  // summed over the chunk
  float beta[kChunk];
  float row[kChunk];      // exp(G_i - R), R = G at the first row of i's block of 16
  float left[3][kChunk];  // of block row b + 1: k_factor_j exp(R - G_j), j < 16 (b + 1)
};

struct Scalars {
  HeadScalars heads[kHeadsAtOnce];
  float k_factor[kChunk];
  float q_factor[kChunk];
};

// The same value, of which the compiler knows nothing.
__device__ inline int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// The ten blocks on and below the diagonal.
struct BlockPlace {
  int i;
  int j;
};
__device__ inline BlockPlace block_place(int index) {
  const int i = index < 1 ? 0 : index < 3 ? 1 : index < 6 ? 2 : 3;
  return {i, index - i * (i + 1) / 2};
}

// sum(x^2) over a row of a tile, by two lanes next to each other; both get it.
template <class T, int K>
__device__ float sum_of_squares(const std::byte* tile, int row, int part) {
  float sum = 0.0F;
  for (int piece = part; piece < K / 8; piece += 2) {
    const uint4 eight = *reinterpret_cast<const uint4*>(tile + piece / 8 * (kChunk * 128) + swizzled(row, piece % 8));
    for (const std::uint32_t packed : {eight.x, eight.y, eight.z, eight.w}) {
      const float2 pair = unpack<T>(packed);
      sum += pair.x * pair.x + pair.y * pair.y;
    }
  }
  return sum + __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
}

__device__ inline float rounded_to_tf32(float value) { return __uint_as_float(to_tf32(value)); }

// sum += a[0..16, 8 first_step..8 last_step) b[8 first_step..8 last_step, 0..8), of matrices in shared memory that hold
// tf32 values.
__device__ inline void multiply_strip(float (&sum)[4], const float* a, const float* b, int first_step, int last_step,
                                      int lane) {
  const std::uint32_t a_place =
      shared_address(a) + static_cast<std::uint32_t>((lane % 16 * kPitch + lane / 16 * 4) * 4);
  const float* b_place = b + lane % 4 * kPitch + lane / 4;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    if (step < first_step || step >= last_step) continue;
    const std::uint32_t b0 = __float_as_uint(b_place[step * 8 * kPitch]);
    const std::uint32_t b1 = __float_as_uint(b_place[(step * 8 + 4) * kPitch]);
    std::uint32_t left[4];
    load_blocks(left, a_place + static_cast<std::uint32_t>(step * 32));
    multiply_add_tf32(sum, left, b0, b1);
  }
}

// sum, rounded to tf32 and times sign, to 16 rows of 8 columns.
__device__ inline void store_strip(float* to, const float (&sum)[4], float sign, int lane) {
  float* place = to + lane / 4 * kPitch + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    *reinterpret_cast<float2*>(place + 8 * half * kPitch) = {rounded_to_tf32(sign * sum[2 * half]),
                                                             rounded_to_tf32(sign * sum[2 * half + 1])};
  }
}

// Inverts the diagonal blocks of 16 in place: two warps, a lane a column. Four rows at a time, whose sums do not wait
// for each other.
__device__ inline void invert_diagonal(float* matrix, int warp, int lane) {
  const int block = 2 * warp + lane / 16;
  const int column = lane % 16;
  float* corner = matrix + 16 * block * (kPitch + 1);
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; i += 4) {
    float sum[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) sum[r] = i + r == column ? 1.0F : 0.0F;
#pragma unroll
    for (int m = 0; m < i; m += 4) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float4 four = *reinterpret_cast<const float4*>(corner + (i + r) * kPitch + m);
        sum[r] -= four.x * x[m] + four.y * x[m + 1] + (four.z * x[m + 2] + four.w * x[m + 3]);
      }
    }
    float4 rows[4];
#pragma unroll
    for (int r = 1; r < 4; ++r) rows[r] = *reinterpret_cast<const float4*>(corner + (i + r) * kPitch + i);
    x[i] = sum[0];
    x[i + 1] = sum[1] - rows[1].x * x[i];
    x[i + 2] = sum[2] - rows[2].x * x[i] - rows[2].y * x[i + 1];
    x[i + 3] = sum[3] - rows[3].x * x[i] - rows[3].y * x[i + 1] - rows[3].z * x[i + 2];
  }
  __syncwarp();  // all lanes have read the block
#pragma unroll
  for (int i = 0; i < 16; ++i) corner[i * kPitch + column] = rounded_to_tf32(x[i]);
}

// Value head j of the key head: gates summed over the chunk, decays. By one warp; lane i has tokens 2i and 2i + 1.
struct RawGates {
  float g[2];
  float beta[2];
};
__device__ inline RawGates load_gates(const ChunkArguments& args, int row, int begin, int length, int head, int lane) {
  RawGates gates{};
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int token = begin + 2 * lane + c;
    if (2 * lane + c >= length) continue;
    if (args.gate_a.tensor.data != nullptr) {
      const Gate gate =
          compute_gate(load_scalar(args.gate_a, row, token, head), load_scalar(args.gate_b, row, token, head),
                       load_scalar(args.a_log, head), load_scalar(args.dt_bias, head));
      gates.g[c] = gate.g;
      gates.beta[c] = gate.beta;
    } else {
      gates.g[c] = args.g.row(row, token)[head];
      gates.beta[c] = args.beta.row(row, token)[head];
    }
  }
  return gates;
}

__device__ inline void work_out_decays(const RawGates& gates, HeadScalars& head, int lane) {
  float sum = gates.g[0] + gates.g[1];
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float other = __shfl_up_sync(0xFFFFFFFFU, sum, distance);
    if (lane >= distance) sum += other;
  }
  float before = __shfl_up_sync(0xFFFFFFFFU, sum, 1);
  if (lane == 0) before = 0.0F;
  *reinterpret_cast<float2*>(head.g + 2 * lane) = {before + gates.g[0], sum};
  *reinterpret_cast<float2*>(head.beta + 2 * lane) = {gates.beta[0], gates.beta[1]};
  __syncwarp();
#pragma unroll
  for (int i = lane; i < kChunk; i += 32) head.row[i] = decay_of(head.g[i] - head.g[i & ~15]);
#pragma unroll
  for (int block = 1; block < 4; ++block) {
    const float reference = head.g[16 * block];
#pragma unroll
    for (int i = lane; i < 16 * block; i += 32) {
      head.left[block - 1][i] = decay_of(reference - head.g[i]);
    }
  }
}

// A block of 16 x 16 of A to `a` and of P to its tile in shared memory; kk and qk are the accumulators of its two
// halves of 8 columns.
template <class T, bool kDiagonal>
__device__ void apply_decays(const float (&kk)[2][4], const float (&qk)[2][4], BlockPlace block, const Scalars& scalars,
                             const HeadScalars& head, float scale, float* a, std::byte* p, int lane) {
  const int first_row = 16 * block.i + lane / 4;
  const int first_column = 16 * block.j + lane % 4 * 2;
  float* a_place = a + first_row * kPitch + first_column;
  std::byte* p_place = p + first_row * 128 + lane % 4 * 4;
  const float* column_factors = kDiagonal ? scalars.k_factor : head.left[block.i - 1];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = first_row + 8 * half;
    const float row_decay = kDiagonal ? 1.0F : head.row[i];
    const float a_factor = head.beta[i] * scalars.k_factor[i] * row_decay;
    const float p_factor = scale * scalars.q_factor[i] * row_decay;
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const int column = first_column + 8 * eight;
      float2 factor = *reinterpret_cast<const float2*>(column_factors + column);
      if (kDiagonal) {
        // The exponent is above 0 only above the diagonal.
        const float2 g = *reinterpret_cast<const float2*>(head.g + column);
        factor.x *= decay_of(fminf(head.g[i] - g.x, 0.0F));
        factor.y *= decay_of(fminf(head.g[i] - g.y, 0.0F));
      }
      const float a_low = a_factor * (kk[eight][2 * half] * factor.x);
      const float a_high = a_factor * (kk[eight][2 * half + 1] * factor.y);
      const float p_low = p_factor * (qk[eight][2 * half] * factor.x);
      const float p_high = p_factor * (qk[eight][2 * half + 1] * factor.y);
      const auto keep = [&](bool kept, float value) { return !kDiagonal || kept ? value : 0.0F; };
      *reinterpret_cast<float2*>(a_place + 8 * half * kPitch + 8 * eight) = {
          rounded_to_tf32(keep(column < i, a_low)), rounded_to_tf32(keep(column + 1 < i, a_high))};
      *reinterpret_cast<std::uint32_t*>(p_place + 8 * half * 128 + ((2 * block.j + eight) ^ (first_row & 7)) * 16) =
          pack<T>(keep(column <= i, p_low), keep(column + 1 <= i, p_high));
    }
  }
}

// The finished record from shared to global memory, by the whole block; from compute capability 9.0 on by the copy
// engine while the block goes on, until wait_for_bulk_reads().
__device__ void store_record(std::byte* to, const std::byte* shared, int thread) {
#if __CUDA_ARCH__ >= 900
  fence_for_async_reads();
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

// One value head's record in `shared`, by the whole block.
template <class T>
__device__ void prepare_head(const float (&kk)[2][2][4], const float (&qk)[2][2][4], const Scalars& scalars,
                             const HeadScalars& head, float scale, std::byte* shared, float* matrix) {
  // Addresses are worked out anew for each head: kept over the loop they would not fit into the registers.
  const int thread = opaque(static_cast<int>(threadIdx.x));
  const int warp = thread / 32;
  const int lane = thread % 32;
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const BlockPlace block = block_place(warp + b * kWarps);
    if (block.i == block.j) {
      apply_decays<T, true>(kk[b], qk[b], block, scalars, head, scale, matrix, shared + ChunkRecord::kP, lane);
    } else {
      apply_decays<T, false>(kk[b], qk[b], block, scalars, head, scale, matrix, shared + ChunkRecord::kP, lane);
    }
  }
  __syncthreads();
  if (warp < 2) {
    invert_diagonal(matrix, warp, lane);
  } else if (warp < 4) {
    const int i = thread - 64;
    const float total = head.g[i];
    const float last = head.g[kChunk - 1];  // gates past the end are 0
    const float decay = decay_of(total);
    auto* scalar = reinterpret_cast<float*>(shared + ChunkRecord::kX) + i;
    scalar[0] = scalars.k_factor[i] * decay;
    scalar[kChunk] = scalars.k_factor[i] * decay_of(last - total);
    scalar[2 * kChunk] = scale * scalars.q_factor[i] * decay;
    scalar[3 * kChunk] = head.beta[i];
    if (i == 0) *reinterpret_cast<float*>(shared + ChunkRecord::kDecay) = decay_of(last);
  }
  __syncthreads();
  // Blocks (1,0) and (3,2): a warp 8 columns. All have read A before any replaces it.
  {
    float* corner = matrix + 32 * (warp / 2) * (kPitch + 1);  // of the pair of diagonal blocks
    float* place = corner + 16 * kPitch + warp % 2 * 8;
    float sum[4] = {};
    if (warp < 4) multiply_strip(sum, corner + 16 * kPitch, corner + warp % 2 * 8, 0, 2, lane);
    __syncthreads();
    if (warp < 4) {
      store_strip(place, sum, 1.0F, lane);
      __syncwarp();
      float product[4] = {};
      multiply_strip(product, corner + 16 * (kPitch + 1), place, 0, 2, lane);
      __syncwarp();
      store_strip(place, product, -1.0F, lane);
    }
  }
  __syncthreads();
  // Blocks (2..3, 0..1): strips of 16 rows and 8 columns, two for the first warps.
  const auto strip_row = [](int strip) { return 32 + 16 * (strip / 4); };
  const auto strip_column = [](int strip) { return 8 * (strip % 4); };
  float sums[2][4] = {};
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const int strip = warp + s * kWarps;
    if (strip >= 8) break;
    multiply_strip(sums[s], matrix + strip_row(strip) * kPitch, matrix + strip_column(strip), strip % 4 / 2 * 2, 4,
                   lane);
  }
  // Meanwhile (T - I) diag(beta) for the diagonal blocks of 32: 8 columns of a row.
  for (int i = thread; i < 256; i += kThreads) {
    const int row = i / 4;
    const int piece = row / 32 * 4 + i % 4;
    float values[8];
    float factors[8];
    *reinterpret_cast<float4*>(values) = *reinterpret_cast<const float4*>(matrix + row * kPitch + piece * 8);
    *reinterpret_cast<float4*>(values + 4) = *reinterpret_cast<const float4*>(matrix + row * kPitch + piece * 8 + 4);
    *reinterpret_cast<float4*>(factors) = *reinterpret_cast<const float4*>(head.beta + piece * 8);
    *reinterpret_cast<float4*>(factors + 4) = *reinterpret_cast<const float4*>(head.beta + piece * 8 + 4);
#pragma unroll
    for (int c = 0; c < 8; ++c) values[c] = piece * 8 + c < row ? values[c] * factors[c] : 0.0F;
    *reinterpret_cast<uint4*>(shared + ChunkRecord::kT + swizzled(row, piece)) = {
        pack<T>(values[0], values[1]), pack<T>(values[2], values[3]), pack<T>(values[4], values[5]),
        pack<T>(values[6], values[7])};
  }
  __syncthreads();
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const int strip = warp + s * kWarps;
    if (strip < 8) store_strip(matrix + strip_row(strip) * kPitch + strip_column(strip), sums[s], 1.0F, lane);
  }
  __syncthreads();
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const int strip = warp + s * kWarps;
    if (strip >= 8) break;
    float product[4] = {};
    multiply_strip(product, matrix + strip_row(strip) * kPitch + 32, matrix + 32 * kPitch + strip_column(strip), 0,
                   2 + strip / 4 * 2, lane);
    const float2 factor = *reinterpret_cast<const float2*>(head.beta + strip_column(strip) + lane % 4 * 2);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = strip_row(strip) + 8 * half + lane / 4;
      *reinterpret_cast<std::uint32_t*>(shared + ChunkRecord::kT + swizzled(i, strip % 4) + lane % 4 * 4) =
          pack<T>(-product[2 * half] * factor.x, -product[2 * half + 1] * factor.y);
    }
  }
}

template <class T, int K>
__global__ void __launch_bounds__(kThreads, K > 128 ? 3 : 4)
    chunk_prepare(const __grid_constant__ ChunkArguments args) {
  using S = Shared<K>;
  extern __shared__ __align__(1024) std::byte shared[];
  __shared__ Scalars scalars;
  allow_next_kernel();
  // Blocks come in the opposite order of what the second pass reads, the last chunks of all sequences first: what it
  // begins with is what the second-level cache still holds. Exact for sequences of one length, a permutation for any.
  const int key_head = static_cast<int>(blockIdx.x) % args.hk;
  const int place = static_cast<int>(blockIdx.x) / args.hk;
  const int per_sequence = (static_cast<int>(args.slots) + args.map.sequences - 1) / args.map.sequences;
  const int slot = place % args.map.sequences * per_sequence + per_sequence - 1 - place / args.map.sequences;
  if (slot >= args.slots) return;
  const int n = args.map.sequence_of(slot, kChunk);
  const SequenceMap::Sequence sequence = args.map.sequence(n);
  const int first = (slot - args.map.first_piece(n, kChunk)) * kChunk;
  if (first < 0 || first >= sequence.length) return;
  const int begin = sequence.begin + first;
  const int length = min(kChunk, sequence.length - first);

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const std::uint32_t tiles = shared_address(shared);
  const int heads = args.hv / args.hk;
  const auto value_head = [&](int j) { return args.tiled ? key_head + j * args.hk : key_head * heads + j; };
  // A warp has the gates of one head of a batch. They are asked for first: they are what the block waits for longest.
  const auto has_gates = [&](int j) { return warp < min(heads - j, kHeadsAtOnce); };
  RawGates gates{};
  if (has_gates(0)) gates = load_gates(args, sequence.row, begin, length, value_head(warp), lane);
  if (thread < kCopiers) {
    constexpr int kColumns = K < 128 ? K : 128;  // at a time
    constexpr int kPieces = kColumns / 8;
    constexpr int kRows = kCopiers / kPieces;  // a multiple of 8: a thread's swizzle is always the same
    const int row = thread / kPieces;
    const int piece = thread % kPieces;
    const auto source = [&](const TensorView<const void>& tensor) {
      return static_cast<const T*>(tensor.data) + sequence.row * tensor.strides[0] + (begin + row) * tensor.strides[1] +
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
        copy_16_bytes(tile + static_cast<std::uint32_t>(S::kTile + i * kRows * 128), q + steps * q_step + column,
                      valid);
      }
    }
    commit_copies();
  }
  if (has_gates(0)) work_out_decays(gates, scalars.heads[warp], lane);
  wait_for_copies<0>();
  __syncthreads();

  float kk[2][2][4] = {};
  float qk[2][2][4] = {};
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const BlockPlace block = block_place(warp + b * kWarps);
    // Step s takes pieces 2s and 2s + 1 of a row; their swizzled places differ from the first step's in two bits.
    const std::uint32_t k_row = tiles + swizzled(16 * block.i + lane % 16, lane / 16);
    const std::uint32_t q_row = k_row + S::kTile;
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
  if (args.normalize && thread < kCopiers) {
    const float k_sum = sum_of_squares<T, K>(shared, thread / 2, thread % 2);
    const float q_sum = sum_of_squares<T, K>(shared + S::kTile, thread / 2, thread % 2);
    // A row of zeros past the end of the chunk stays zero.
    const bool valid = thread / 2 < length;
    scalars.k_factor[thread / 2] = valid ? rsqrtf(k_sum + args.norm_eps) : 0.0F;
    scalars.q_factor[thread / 2] = valid ? rsqrtf(q_sum + args.norm_eps) : 0.0F;
  } else if (!args.normalize && thread < kChunk) {
    scalars.k_factor[thread] = 1.0F;
    scalars.q_factor[thread] = 1.0F;
  }
  __syncthreads();

  auto* matrix = reinterpret_cast<float*>(shared + S::kMatrix);
  // What lies above the diagonal blocks of T and P is zero for every head: six blocks of 16 rows of 32 bytes in each.
  for (int i = thread; i < 2 * 6 * 32; i += kThreads) {
    const int index = i / 32 % 6;
    const int block_column = index < 1 ? 1 : index < 3 ? 2 : 3;
    const int block_row = index - block_column * (block_column - 1) / 2;
    *reinterpret_cast<uint4*>(shared + (i < 6 * 32 ? ChunkRecord::kT : ChunkRecord::kP) +
                              swizzled(16 * block_row + i % 32 / 2, 2 * block_column + i % 2)) = {0, 0, 0, 0};
  }
  for (int j = 0; j < heads; ++j) {
    const int in_batch = j % kHeadsAtOnce;
    if (j > 0 && in_batch == 0 && has_gates(j)) {
      work_out_decays(load_gates(args, sequence.row, begin, length, value_head(j + warp), lane), scalars.heads[warp],
                      lane);
    }
    if (args.normalize && in_batch == 0) {
      __syncthreads();
      for (int i = thread; i < kHeadsAtOnce * 3 * kChunk; i += kThreads) {
        scalars.heads[i / (3 * kChunk)].left[i / kChunk % 3][i % kChunk] *= scalars.k_factor[i % kChunk];
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
  if (args.slots == 0) return;
  constexpr int kBytes = Shared<K>::kBytes;
  allow_shared_memory(reinterpret_cast<const void*>(chunk_prepare<T, K>), kBytes, kOperation);
  const std::int64_t per_sequence = (args.slots + args.map.sequences - 1) / args.map.sequences;
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
