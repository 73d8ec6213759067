#pragma once

// The matrices of a chunk's record (chunk_record.h), which do not depend on the state.
//
// Decays exp(G_i - G_j) left of the diagonal blocks of 16 are products of exp(G_i - R) and exp(R - G_j), R being G at
// the first row of i's block: both exponents are at most 0, and there are far fewer exponentials.
//
// The inverse T of the unit lower triangular 64 x 64 matrix I + A: substitution in f32 inverts the diagonal blocks of
// 8, a lane a column; then pairs of blocks are merged, 8 to 16 to 32 to 64, T_21 = -T_22 (A_21 T_11), with tf32
// products.

#include "cuda/common/async_copy.h"
#include "cuda/common/mma.h"
#include "cuda/gated_delta/chunk_arguments.h"
#include "cuda/gated_delta/gate.h"

namespace thalweg::cu {

// A lower triangular f32 matrix of 64 x 64 in shared memory, in blocks of 16 x 16. Rows of a block are kPitch floats
// apart: 4 more than a multiple of 32, and ldmatrix reads them without conflicts, or 24 more, and all other accesses,
// which are four times as many, are without.
template <int kPitch>
struct BlockMatrix {
  static_assert(kPitch % 32 == 4 || kPitch % 32 == 24);

  float* first;
  int down;  // from a block to the one below it

  __device__ float* block(int i, int j) const { return first + i * down + 16 * j; }
};

struct OneMatrix {
  static constexpr int kPitch = kChunk + 4;

  float values[kChunk * kPitch];

  __device__ BlockMatrix<kPitch> get() { return {values, 16 * kPitch}; }
};

// Two of them in five blocks a row: rows of blocks of the second one stand from the bottom up, behind the first one's.
struct TwoMatrices {
  static constexpr int kPitch = kChunk + 16 + 8;

  float values[kChunk * kPitch];

  __device__ BlockMatrix<kPitch> operator[](int i) {
    if (i == 0) return {values, 16 * kPitch};
    return {values + 16 * (3 * kPitch + 4), -16 * (kPitch + 1)};
  }
};

// exp(x) for x <= 0, to 2^-22; 0 if the result is subnormal.
__device__ inline float decay_of(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634F));
  return result;
}

// Scalars of a chunk and value head.
struct HeadScalars {
  float g[kChunk];  // summed over the chunk
  float beta[kChunk];
  float row[kChunk];  // exp(G_i - R), R = G at the first row of i's block of 16
  static constexpr int kLeft = 6 * 16;
  float left[kLeft];  // of block rows 1 to 3: k_factor_j exp(R - G_j), j < 16 times the row

  static __device__ int first_left(int block_row) { return 8 * block_row * (block_row - 1); }
};

// Norm factors of a chunk and key head; 1 without a norm.
struct KeyFactors {
  float k[kChunk];
  float q[kChunk];
};

// A block of 16 x 16 on or below the diagonal.
struct BlockIndex {
  int i;
  int j;
};

// sum(x^2) over a row of a tile, by two neighboring lanes; both return it.
template <class T, int K>
__device__ float sum_of_squares(const std::byte* tile, int row, int parity) {
  float sum = 0.0F;
  for (int vector = parity; vector < K / 8; vector += 2) {
    const uint4 eight = *reinterpret_cast<const uint4*>(tile + vector / 8 * (kChunk * 128) + swizzled(row, vector % 8));
    for (const std::uint32_t packed : {eight.x, eight.y, eight.z, eight.w}) {
      const float2 pair = unpack<T>(packed);
      sum += pair.x * pair.x + pair.y * pair.y;
    }
  }
  return sum + __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
}

// The norm factors of a chunk of `length` tokens, by the first 128 threads.
template <class T, int K>
__device__ void find_factors(const ChunkArguments& args, const std::byte* k_tile, const std::byte* q_tile, int length,
                             int thread, KeyFactors& factors) {
  if (args.normalize && thread < 2 * kChunk) {
    const float k_sum = sum_of_squares<T, K>(k_tile, thread / 2, thread % 2);
    const float q_sum = sum_of_squares<T, K>(q_tile, thread / 2, thread % 2);
    // A row of zeros past the end of the chunk stays zero.
    const bool valid = thread / 2 < length;
    factors.k[thread / 2] = valid ? rsqrtf(k_sum + args.norm_eps) : 0.0F;
    factors.q[thread / 2] = valid ? rsqrtf(q_sum + args.norm_eps) : 0.0F;
  } else if (!args.normalize && thread < kChunk) {
    factors.k[thread] = 1.0F;
    factors.q[thread] = 1.0F;
  }
}

// Gates of tokens 2 lane and 2 lane + 1 of a chunk; 0 past its end.
struct LaneGates {
  float g[2];
  float beta[2];
};
__device__ inline LaneGates load_gates(const ChunkArguments& args, int row, int begin, int length, int head, int lane) {
  LaneGates gates{};
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int token = begin + 2 * lane + c;
    if (2 * lane + c >= length) continue;
    if (args.gate_a.defined()) {
      const Gate gate = compute_gate(args.gate_a.load(args.gate_a.offset(row, token) + head),
                                     args.gate_b.load(args.gate_b.offset(row, token) + head), args.a_log.load(head),
                                     args.dt_bias.load(head));
      gates.g[c] = gate.g;
      gates.beta[c] = gate.beta;
    } else {
      gates.g[c] = args.g.row(row, token)[head];
      gates.beta[c] = args.beta.row(row, token)[head];
    }
  }
  return gates;
}

// Sums of gates over the chunk, and beta. By a warp.
__device__ inline void sum_gates(const LaneGates& gates, HeadScalars& head, int lane) {
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
}

// Decays from sums of gates, without the norm factors of k. By a warp.
__device__ inline void compute_decays(HeadScalars& head, int lane) {
#pragma unroll
  for (int n = 0; n < kChunk / 32; ++n) {
    const int i = lane + 32 * n;
    head.row[i] = decay_of(head.g[i] - head.g[i & ~15]);
  }
#pragma unroll
  for (int n = 0; n < HeadScalars::kLeft / 32; ++n) {
    const int i = lane + 32 * n;
    const int block_row = i < 16 ? 1 : i < 48 ? 2 : 3;
    head.left[i] = decay_of(head.g[16 * block_row] - head.g[i - HeadScalars::first_left(block_row)]);
  }
}

// The tensor cores drop the low bits of an f32 operand: a product of four such factors is too small by this factor, on
// average. Rounding every operand instead would take a third of all instructions.
constexpr float kAfterFourFactors = 1.0F + 4 * 3.5e-4F;

// The factors of a lane's elements of a block of 16 x 16, besides the factors of their rows: of columns
// 8 eight + 2 (lane % 4) and the next, and rows 8 half + lane / 4.
template <bool kDiagonal>
struct BlockDecays {
  float2 factor[2][2];  // [half][eight]

  // Without the norm factors of the diagonal block's columns; whether head.left has them is the caller's choice.
  __device__ BlockDecays(BlockIndex block, const HeadScalars& head, int lane) {
    const float* columns =
        (kDiagonal ? head.g : head.left + HeadScalars::first_left(block.i)) + 16 * block.j + lane % 4 * 2;
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const float2 column = *reinterpret_cast<const float2*>(columns + 8 * eight);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (kDiagonal) {
          // The exponent is above 0 only above the diagonal.
          const float g = head.g[16 * block.i + 8 * half + lane / 4];
          factor[half][eight] = {decay_of(fminf(g - column.x, 0.0F)), decay_of(fminf(g - column.y, 0.0F))};
        } else {
          factor[half][eight] = column;
        }
      }
    }
  }
  __device__ void multiply_columns(const KeyFactors& factors, int block_column, int lane) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const float2 k = *reinterpret_cast<const float2*>(factors.k + 16 * block_column + 8 * eight + lane % 4 * 2);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        factor[half][eight].x *= k.x;
        factor[half][eight].y *= k.y;
      }
    }
  }
};

// The factors of a lane's rows of a block, [half].
struct RowFactors {
  float a[2];  // of the diagonal block
  float p[2];
  float decay[2];  // left of the diagonal block, besides a or p

  // Without the norm factors.
  __device__ RowFactors(int block_row, const HeadScalars& head, float scale, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * block_row + 8 * half + lane / 4;
      a[half] = head.beta[i];
      p[half] = scale;
      decay[half] = head.row[i];
    }
  }
  __device__ void multiply_rows(const KeyFactors& factors, int block_row, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * block_row + 8 * half + lane / 4;
      a[half] *= factors.k[i];
      p[half] *= factors.q[i];
    }
  }
};

// Makes a block of A from one of k k^T, the accumulators of its two halves of 8 columns.
template <bool kDiagonal>
__device__ void scale_a(float (&block)[2][4], const RowFactors& rows, const BlockDecays<kDiagonal>& decays, int lane) {
  const int row = lane / 4;
  const int column = lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float row_factor = kDiagonal ? rows.a[half] : rows.a[half] * rows.decay[half];
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const float2 factor = decays.factor[half][eight];
      float& low = block[eight][2 * half];
      float& high = block[eight][2 * half + 1];
      const int from_diagonal = column + 8 * eight - row - 8 * half;
      low = !kDiagonal || from_diagonal < 0 ? row_factor * (low * factor.x) : 0.0F;
      high = !kDiagonal || from_diagonal + 1 < 0 ? row_factor * (high * factor.y) : 0.0F;
    }
  }
}

// Stores two halves of 8 columns to a block of a matrix.
template <int kPitch>
__device__ void store_block(BlockMatrix<kPitch> matrix, BlockIndex index, const float (&block)[2][4], int lane) {
  float* to = matrix.block(index.i, index.j) + lane / 4 * kPitch + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    *reinterpret_cast<float2*>(to + 8 * half) = {block[half][0], block[half][1]};
    *reinterpret_cast<float2*>(to + 8 * half + 8 * kPitch) = {block[half][2], block[half][3]};
  }
}

// Stores a block of P to its tile; qk is laid out as kk above.
template <class T, bool kDiagonal>
__device__ void store_p(const float (&qk)[2][4], BlockIndex block, const RowFactors& rows,
                        const BlockDecays<kDiagonal>& decays, std::byte* tile, int lane) {
  const int row = lane / 4;
  const int column = lane % 4 * 2;
  std::byte* target = tile + (16 * block.i + row) * 128 + lane % 4 * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float row_factor = kDiagonal ? rows.p[half] : rows.p[half] * rows.decay[half];
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const float2 factor = decays.factor[half][eight];
      const float low = row_factor * (qk[eight][2 * half] * factor.x);
      const float high = row_factor * (qk[eight][2 * half + 1] * factor.y);
      const int from_diagonal = column + 8 * eight - row - 8 * half;
      *reinterpret_cast<std::uint32_t*>(target + 8 * half * 128 + ((2 * block.j + eight) ^ row) * 16) =
          pack<T>(!kDiagonal || from_diagonal <= 0 ? low : 0.0F, !kDiagonal || from_diagonal + 1 <= 0 ? high : 0.0F);
    }
  }
}

// Stores two of the four scale factors of token i: of k, or those of q and beta.
__device__ inline void store_scalars(const KeyFactors& factors, const HeadScalars& head, float scale, std::byte* record,
                                     int i, bool of_k) {
  const float total = head.g[i];
  const float last = head.g[kChunk - 1];  // gates past the end are 0
  const float decay = decay_of(total);
  auto* scalar = reinterpret_cast<float*>(record + (of_k ? ChunkRecord::kX : ChunkRecord::kO)) + i;
  scalar[0] = (of_k ? factors.k[i] : scale * factors.q[i]) * decay;
  scalar[kChunk] = of_k ? factors.k[i] * decay_of(last - total) : head.beta[i];
  if (i == 0 && of_k) *reinterpret_cast<float*>(record + ChunkRecord::kDecay) = decay_of(last);
}

// Clears T and P above the diagonal blocks: six blocks of 16 rows of 32 bytes in each. No other function writes there.
template <int kThreads>
__device__ void clear_upper_blocks(std::byte* record, int thread) {
  for (int i = thread; i < 2 * 6 * 32; i += kThreads) {
    const int index = i / 32 % 6;
    const int block_column = index < 1 ? 1 : index < 3 ? 2 : 3;
    const int block_row = index - block_column * (block_column - 1) / 2;
    *reinterpret_cast<uint4*>(record + (i < 6 * 32 ? ChunkRecord::kT : ChunkRecord::kP) +
                              swizzled(16 * block_row + i % 32 / 2, 2 * block_column + i % 2)) = {0, 0, 0, 0};
  }
}

// Inverts the diagonal blocks of 8 in kBlocks block rows, one or two, from i on in place, by a warp, a lane a column.
// Four rows at a time have independent sums.
template <int kBlocks, int kPitch>
__device__ void invert_blocks_of_8(BlockMatrix<kPitch> matrix, int i, int lane) {
  const int column = lane % 8;
  const int row = i + lane / 16 % kBlocks;
  float* corner = matrix.block(row, row) + lane / 8 % 2 * 8 * (kPitch + 1);
  float x[8];
#pragma unroll
  for (int n = 0; n < 8; n += 4) {
    float sum[4];
    float4 rows[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      sum[r] = n + r == column ? 1.0F : 0.0F;
      if (r > 0) rows[r] = *reinterpret_cast<const float4*>(corner + (n + r) * kPitch + n);
      if (n == 0) continue;
      const float4 four = *reinterpret_cast<const float4*>(corner + (n + r) * kPitch);
      sum[r] = fmaf(-four.x, x[0], sum[r]);
      sum[r] = fmaf(-four.y, x[1], sum[r]);
      sum[r] = fmaf(-four.z, x[2], sum[r]);
      sum[r] = fmaf(-four.w, x[3], sum[r]);
    }
    x[n] = sum[0];
    x[n + 1] = fmaf(-rows[1].x, x[n], sum[1]);
    x[n + 2] = fmaf(-rows[2].y, x[n + 1], fmaf(-rows[2].x, x[n], sum[2]));
    x[n + 3] = fmaf(-rows[3].z, x[n + 2], fmaf(-rows[3].y, x[n + 1], fmaf(-rows[3].x, x[n], sum[3])));
  }
  __syncwarp();  // all lanes have read the block
  if (lane < 16 * kBlocks) {
#pragma unroll
    for (int n = 0; n < 8; ++n) corner[n * kPitch + column] = x[n];
  }
  __syncwarp();
}

// Inverts the diagonal blocks of 16 in kBlocks block rows from `first` on in place, by a warp, from those of 8.
template <int kBlocks, int kPitch>
__device__ void invert_diagonal(BlockMatrix<kPitch> matrix, int first, int lane) {
  invert_blocks_of_8<kBlocks>(matrix, first, lane);
  float2 below[kBlocks];
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    // As in multiply_blocks(), with 8 of 16 rows of the left operands empty.
    const float* t_11 = matrix.block(first + i, first + i);
    const float* a_21 = t_11 + 8 * kPitch + lane / 4 * kPitch + lane % 4;
    const float* column = t_11 + lane % 4 * kPitch + lane / 4;
    const float2 pair = *reinterpret_cast<const float2*>(t_11 + 8 * (kPitch + 1) + lane / 4 * kPitch + lane % 4 * 2);
    float product[4] = {};
    multiply_add_tf32(product, {__float_as_uint(column[0]), 0, __float_as_uint(column[4 * kPitch]), 0},
                      __float_as_uint(a_21[0]), __float_as_uint(a_21[4]));
    float sum[4] = {};
    multiply_add_tf32(sum, {__float_as_uint(pair.x), 0, __float_as_uint(pair.y), 0}, __float_as_uint(product[0]),
                      __float_as_uint(product[1]));
    below[i] = {-kAfterFourFactors * sum[0], -kAfterFourFactors * sum[1]};
  }
  __syncwarp();  // all lanes have read A
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    float* to = matrix.block(first + i, first + i) + (8 + lane / 4) * kPitch + lane % 4 * 2;
    *reinterpret_cast<float2*>(to) = below[i];
  }
}

// block[16,16], as two halves of 8 columns, = -t_22 (a_21 t_11) over the rows 8 first..8 last of t_11 and the first
// 16 tiles rows of a_21; all are in shared memory, `down` as in BlockMatrix. (a_21 t_11)^T leaves the tensor cores in
// the layout in which its transpose is their right operand, but for the order of the rows, in which t_22's columns are
// read then too.
template <int kPitch, int kTiles>
__device__ void multiply_blocks(float (&block)[2][4], const float* t_22, const float* a_21, const float* t_11, int down,
                                int first, int last, int tiles, int lane) {
  float product[2 * kTiles][4] = {};
  const float* columns = t_11 + lane % 4 * kPitch + lane / 4;
  const std::uint32_t rows =
      shared_address(a_21) + static_cast<std::uint32_t>((lane % 16 * kPitch + lane / 16 * 4) * 4);
#pragma unroll
  for (int step = 0; step < 2 * kTiles; ++step) {
    if (step < first || step >= last) continue;
    const float* column = columns + step / 2 * down + step % 2 * 8 * kPitch;
    const std::uint32_t left[4] = {__float_as_uint(column[0]), __float_as_uint(column[8]),
                                   __float_as_uint(column[4 * kPitch]), __float_as_uint(column[4 * kPitch + 8])};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile >= tiles) break;
      std::uint32_t right[4];
      load_blocks(right, rows + static_cast<std::uint32_t>((tile * down + step * 8) * 4));
      multiply_add_tf32(product[2 * tile], left, right[0], right[2]);
      multiply_add_tf32(product[2 * tile + 1], left, right[1], right[3]);
    }
  }
  const float* pairs = t_22 + lane / 4 * kPitch + lane % 4 * 2;
#pragma unroll
  for (int eight = 0; eight < 2 * kTiles; ++eight) {
    if (eight >= 2 * tiles) break;
    const float2 top = *reinterpret_cast<const float2*>(pairs + 8 * eight);
    const float2 bottom = *reinterpret_cast<const float2*>(pairs + 8 * kPitch + 8 * eight);
    const std::uint32_t left[4] = {__float_as_uint(top.x), __float_as_uint(bottom.x), __float_as_uint(top.y),
                                   __float_as_uint(bottom.y)};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      multiply_add_tf32(block[half], left, __float_as_uint(product[eight][2 * half]),
                        __float_as_uint(product[eight][2 * half + 1]));
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (float& value : block[half]) value *= -kAfterFourFactors;
  }
}

// Stores 16 rows of 8 columns of T, times diag(beta), to the tile.
template <class T>
__device__ void store_times_beta(std::byte* tile, const float (&strip)[4], const float* beta, int row, int vector,
                                 int lane) {
  const float2 factor = *reinterpret_cast<const float2*>(beta + 8 * vector + lane % 4 * 2);
  std::byte* target = tile + swizzled(row + lane / 4, vector) + lane % 4 * 4;
  *reinterpret_cast<std::uint32_t*>(target) = pack<T>(strip[0] * factor.x, strip[1] * factor.y);
  *reinterpret_cast<std::uint32_t*>(target + 8 * 128) = pack<T>(strip[2] * factor.x, strip[3] * factor.y);
}

// Computes block (1,0) or (3,2) of T from the inverses of the diagonal blocks of 16, in place of A's, which no other
// warp reads, and stores it times diag(beta). By a warp.
template <class T, int kPitch>
__device__ void merge_blocks_of_16(BlockMatrix<kPitch> matrix, const float* beta, std::byte* tile, int pair, int lane) {
  const BlockIndex index{2 * pair + 1, 2 * pair};
  float block[2][4] = {};
  multiply_blocks<kPitch, 1>(block, matrix.block(index.i, index.i), matrix.block(index.i, index.j),
                             matrix.block(index.j, index.j), matrix.down, 0, 2, 1, lane);
  __syncwarp();  // all lanes have read A
  store_block(matrix, index, block, lane);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    store_times_beta<T>(tile, block[half], beta, 16 * index.i, 2 * index.j + half, lane);
  }
}

// Stores diagonal block i of 16 of (T - I) diag(beta). By a warp, 8 columns of a row a lane.
template <class T, int kPitch>
__device__ void store_diagonal(BlockMatrix<kPitch> matrix, const float* beta, std::byte* tile, int i, int lane) {
  const int row = lane / 2;
  const int column = lane % 2 * 8;
  const float* from = matrix.block(i, i) + row * kPitch + column;
  float values[8];
  float factors[8];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    *reinterpret_cast<float4*>(values + 4 * half) = *reinterpret_cast<const float4*>(from + 4 * half);
    *reinterpret_cast<float4*>(factors + 4 * half) =
        *reinterpret_cast<const float4*>(beta + 16 * i + column + 4 * half);
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) values[c] = column + c < row ? values[c] * factors[c] : 0.0F;
  *reinterpret_cast<uint4*>(tile + swizzled(16 * i + row, 2 * i + lane % 2)) = {
      pack<T>(values[0], values[1]), pack<T>(values[2], values[3]), pack<T>(values[4], values[5]),
      pack<T>(values[6], values[7])};
}

// Computes and stores the rest of (T - I) diag(beta), blocks (2..3, 0..1), from the inverses of the diagonal blocks
// of 32. By four warps, of which the third one has least to do, then the last one.
template <class T, int kPitch>
__device__ void merge_blocks_of_32(BlockMatrix<kPitch> matrix, const float* beta, std::byte* tile, int thread) {
  const int lane = thread % 32;
  const int row = thread < 64 ? 1 : 0;  // of blocks, in this quarter
  const int column = (thread / 32 ^ thread / 64) & 1;
  float block[2][4] = {};
  multiply_blocks<kPitch, 2>(block, matrix.block(2 + row, 2), matrix.block(2, 0), matrix.block(0, column), matrix.down,
                             2 * column, 4, row + 1, lane);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    store_times_beta<T>(tile, block[half], beta, 32 + 16 * row, 2 * column + half, lane);
  }
}

}  // namespace thalweg::cu
