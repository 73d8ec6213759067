#pragma once

// The matrices of a chunk's record (chunk_record.h), which do not depend on the state.
//
// Decays exp(G_i - G_j) left of the diagonal blocks of 16 are products of exp(G_i - R) and exp(R - G_j), R being G at
// the first row of i's block: both exponents are at most 0, and there are far fewer exponentials.
//
// The inverse T of the unit lower triangular 64 x 64 matrix I + A: substitution in f32 inverts the diagonal blocks of
// 8, a lane a column; then pairs of blocks are merged, 8 to 16 to 32 to 64, T_21 = -T_22 (A_21 T_11). A and T are
// stored as f16 whatever the inputs are: products of tf32 have as long fractions, and are twice as many. So their
// elements are at most 65504; with keys of norm 1 they are about 1.

#include "cuda/common/async_copy.h"
#include "cuda/common/mma.h"
#include "cuda/gated_delta/chunk_arguments.h"
#include "cuda/gated_delta/gate.h"

namespace thalweg::cu {

// A lower triangular matrix of 64 x 64 in shared memory, f16, in blocks of 16 x 16. Rows of a block are an odd number
// of 16 bytes apart: ldmatrix reads them without conflicts.
struct BlockMatrix {
  __half* first;
  int pitch;
  int down;  // from a block to the one below it

  __device__ __half* block(int i, int j) const { return first + i * down + 16 * j; }
};

struct OneMatrix {
  static constexpr int kPitch = kChunk + 8;

  __half values[kChunk * kPitch];

  __device__ BlockMatrix get() { return {values, kPitch, 16 * kPitch}; }
};

// Two of them in five blocks a row: rows of blocks of the second one stand from the bottom up, behind the first one's.
struct TwoMatrices {
  static constexpr int kPitch = kChunk + 16 + 8;

  __half values[kChunk * kPitch];

  __device__ BlockMatrix operator[](int i) {
    if (i == 0) return {values, kPitch, 16 * kPitch};
    return {values + 16 * (3 * kPitch + 4), kPitch, -16 * (kPitch + 1)};
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

  // In `left`: where a row of blocks begins; the row and the column j of an element.
  static __device__ int first_left(int block_row) { return 8 * block_row * (block_row - 1); }
  static __device__ int left_row(int i) { return i < 16 ? 1 : i < 48 ? 2 : 3; }
  static __device__ int left_column(int i) { return i - first_left(left_row(i)); }
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

// Decays from sums of gates, without the norm factors of k, which the caller multiplies head.left by. By a warp.
__device__ inline void compute_decays(HeadScalars& head, int lane) {
#pragma unroll
  for (int n = 0; n < kChunk / 32; ++n) {
    const int i = lane + 32 * n;
    head.row[i] = decay_of(head.g[i] - head.g[i & ~15]);
  }
#pragma unroll
  for (int n = 0; n < HeadScalars::kLeft / 32; ++n) {
    const int i = lane + 32 * n;
    head.left[i] = decay_of(head.g[16 * HeadScalars::left_row(i)] - head.g[HeadScalars::left_column(i)]);
  }
}

// Whether an element of a block is on or below the block's diagonal, which is that of the matrix, or only below it:
// of row 8 half + lane / 4 and column 8 eight + 2 (lane % 4), or the next one.
template <bool kStrictly>
__device__ bool is_lower(int half, int eight, int lane, int next) {
  if (eight != half) return eight < half;
  const int from_diagonal = lane % 4 * 2 + next - lane / 4;
  return kStrictly ? from_diagonal < 0 : from_diagonal <= 0;
}

// The factors of a lane's elements of a block of 16 x 16, besides the factors of their rows: of columns
// 8 eight + 2 (lane % 4) and the next, and rows 8 half + lane / 4. A diagonal block has none for its upper right
// quarter.
template <bool kDiagonal>
struct BlockDecays {
  float2 factor[2][2];  // [half][eight]

  // Without the norm factors of the diagonal block's columns; head.left has the others.
  __device__ BlockDecays(BlockIndex block, const HeadScalars& head, int lane) {
    const float* columns =
        (kDiagonal ? head.g : head.left + HeadScalars::first_left(block.i)) + 16 * block.j + lane % 4 * 2;
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const float2 column = *reinterpret_cast<const float2*>(columns + 8 * eight);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (kDiagonal) {
          if (eight > half) continue;
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
    static_assert(kDiagonal);
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const float2 k = *reinterpret_cast<const float2*>(factors.k + 16 * block_column + 8 * eight + lane % 4 * 2);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (eight > half) continue;
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
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float row_factor = kDiagonal ? rows.a[half] : rows.a[half] * rows.decay[half];
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const float2 factor = decays.factor[half][eight];
      float& low = block[eight][2 * half];
      float& high = block[eight][2 * half + 1];
      low = !kDiagonal || is_lower<true>(half, eight, lane, 0) ? row_factor * (low * factor.x) : 0.0F;
      high = !kDiagonal || is_lower<true>(half, eight, lane, 1) ? row_factor * (high * factor.y) : 0.0F;
    }
  }
}

// Stores two halves of 8 columns to a block of a matrix.
__device__ inline void store_block(const BlockMatrix& matrix, BlockIndex index, const float (&block)[2][4], int lane) {
  __half* to = matrix.block(index.i, index.j) + lane / 4 * matrix.pitch + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    *reinterpret_cast<std::uint32_t*>(to + 8 * half) = pack<__half>(block[half][0], block[half][1]);
    *reinterpret_cast<std::uint32_t*>(to + 8 * half + 8 * matrix.pitch) = pack<__half>(block[half][2], block[half][3]);
  }
}

// Stores a block of P to its tile; qk is laid out as kk above.
template <class T, bool kDiagonal>
__device__ void store_p(const float (&qk)[2][4], BlockIndex block, const RowFactors& rows,
                        const BlockDecays<kDiagonal>& decays, std::byte* tile, int lane) {
  const int row = lane / 4;
  std::byte* target = tile + (16 * block.i + row) * 128 + lane % 4 * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float row_factor = kDiagonal ? rows.p[half] : rows.p[half] * rows.decay[half];
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const float2 factor = decays.factor[half][eight];
      const float low = row_factor * (qk[eight][2 * half] * factor.x);
      const float high = row_factor * (qk[eight][2 * half + 1] * factor.y);
      *reinterpret_cast<std::uint32_t*>(target + 8 * half * 128 + ((2 * block.j + eight) ^ row) * 16) =
          pack<T>(!kDiagonal || is_lower<false>(half, eight, lane, 0) ? low : 0.0F,
                  !kDiagonal || is_lower<false>(half, eight, lane, 1) ? high : 0.0F);
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

// Eight neighboring f16 of shared memory.
struct Eight {
  float values[8];

  __device__ explicit Eight(const __half* from) {
    const uint4 packed = *reinterpret_cast<const uint4*>(from);
    const std::uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack<__half>(pairs[i]);
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    }
  }
};

// Inverts the four blocks of 8 on the diagonals of blocks i and i + 1 in place, by a warp, a lane a column.
__device__ inline void invert_blocks_of_8(const BlockMatrix& matrix, int i, int lane) {
  const int column = lane % 8;
  const int row = i + lane / 16;
  __half* corner = matrix.block(row, row) + lane / 8 % 2 * 8 * (matrix.pitch + 1);
  float x[8];
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    x[n] = n == column ? 1.0F : 0.0F;
    const Eight a(corner + n * matrix.pitch);
#pragma unroll
    for (int j = 0; j < n; ++j) x[n] = fmaf(-a.values[j], x[j], x[n]);
  }
  __syncwarp();  // all lanes have read the blocks
#pragma unroll
  for (int n = 0; n < 8; ++n) corner[n * matrix.pitch + column] = __float2half_rn(x[n]);
  __syncwarp();
}

// Inverts diagonal blocks i and i + 1 in place, by a warp.
__device__ inline void invert_diagonal(const BlockMatrix& matrix, int i, int lane) {
  invert_blocks_of_8(matrix, i, lane);
  // -t_22 (a_21 t_11) of both at once: left operands have those of one in their first eight rows and columns, those of
  // the other in the others. The first product is transposed, and so the right operand of the second.
  const int row = i + lane / 16;
  const __half* block = matrix.block(row, row) + lane % 8 * matrix.pitch;
  std::uint32_t t_11[4];  // each twice
  load_blocks_transposed(t_11, shared_address(block));
  std::uint32_t below[4];  // a_21 and t_22, and those of the other
  load_blocks(below, shared_address(block + 8 * matrix.pitch + lane / 8 % 2 * 8));
  float product[4] = {};
  multiply_add<__half>(product, {t_11[0], 0, 0, t_11[2]}, below[0], below[2]);
  float sum[4] = {};
  multiply_add<__half>(sum, {below[1], 0, 0, below[3]}, pack<__half>(-product[0], -product[1]),
                       pack<__half>(-product[2], -product[3]));
  __syncwarp();  // all lanes have read A
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    __half* to = matrix.block(i + n, i + n) + (8 + lane / 4) * matrix.pitch + lane % 4 * 2;
    *reinterpret_cast<std::uint32_t*>(to) = pack<__half>(sum[2 * n], sum[2 * n + 1]);
  }
}

// The address from which the lane reads a row of a block as an operand: a left one, or a right one by its columns.
__device__ inline std::uint32_t operand_address(const BlockMatrix& matrix, BlockIndex index, int lane) {
  return shared_address(matrix.block(index.i, index.j) + lane % 16 * matrix.pitch + lane / 16 * 8);
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
template <class T>
__device__ void merge_blocks_of_16(const BlockMatrix& matrix, const float* beta, std::byte* tile, int pair, int lane) {
  const BlockIndex index{2 * pair + 1, 2 * pair};
  std::uint32_t t_11[4];
  std::uint32_t a_21[4];
  std::uint32_t t_22[4];
  load_blocks_transposed(t_11, shared_address(matrix.block(index.j, index.j) +
                                              (lane % 8 + lane / 16 * 8) * matrix.pitch + lane / 8 % 2 * 8));
  load_blocks(a_21, operand_address(matrix, index, lane));
  load_blocks(t_22, operand_address(matrix, {index.i, index.i}, lane));
  // (a_21 t_11)^T leaves the tensor cores in the layout in which its transpose is their right operand.
  float product[2][4] = {};
  float block[2][4] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) multiply_add<__half>(product[half], t_11, a_21[half], a_21[2 + half]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    multiply_add<__half>(block[half], t_22, pack<__half>(-product[0][2 * half], -product[0][2 * half + 1]),
                         pack<__half>(-product[1][2 * half], -product[1][2 * half + 1]));
  }
  __syncwarp();  // all lanes have read A
  store_block(matrix, index, block, lane);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    store_times_beta<T>(tile, block[half], beta, 16 * index.i, 2 * index.j + half, lane);
  }
}

// Stores diagonal block i of 16 of (T - I) diag(beta). By a warp, 8 columns of a row a lane.
template <class T>
__device__ void store_diagonal(const BlockMatrix& matrix, const float* beta, std::byte* tile, int i, int lane) {
  const int row = lane / 2;
  const int column = lane % 2 * 8;
  Eight eight(matrix.block(i, i) + row * matrix.pitch + column);
  std::uint32_t packed[4];
#pragma unroll
  for (int c = 0; c < 8; c += 4) {
    const float4 factor = *reinterpret_cast<const float4*>(beta + 16 * i + column + c);
    const auto times = [&](int n, float f) { return column + n < row ? eight.values[n] * f : 0.0F; };
    packed[c / 2] = pack<T>(times(c, factor.x), times(c + 1, factor.y));
    packed[c / 2 + 1] = pack<T>(times(c + 2, factor.z), times(c + 3, factor.w));
  }
  const uint4 all = {packed[0], packed[1], packed[2], packed[3]};
  *reinterpret_cast<uint4*>(tile + swizzled(16 * i + row, 2 * i + lane % 2)) = all;
}

// Computes and stores the rest of (T - I) diag(beta), blocks (2..3, 0..1), from the inverses of the diagonal blocks
// of 32. By four warps, 8 columns each; the last two have less to do.
template <class T>
__device__ void merge_blocks_of_32(const BlockMatrix& matrix, const float* beta, std::byte* tile, int warp, int lane) {
  const int column = warp / 2;  // of blocks
  const int half = warp % 2;
  // Of rows 0..15, unless they are above the diagonal, and of rows 16..31.
  std::uint32_t t_11[4];
  const __half* const blocks = matrix.block(max(lane / 16, column), column);
  load_blocks_transposed(t_11, shared_address(blocks + lane % 16 * matrix.pitch + half * 8));
  float product[2][4] = {};
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    if (m < column) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::uint32_t a_21[4];
      load_blocks(a_21, operand_address(matrix, {2 + i, m}, lane));
      multiply_add<__half>(product[i], a_21, t_11[2 * m], t_11[2 * m + 1]);
    }
  }
  std::uint32_t right[2][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      right[i][eight] = transposed(pack<__half>(-product[i][2 * eight], -product[i][2 * eight + 1]));
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float strip[4] = {};
#pragma unroll
    for (int i = 0; i <= row; ++i) {
      std::uint32_t t_22[4];
      load_blocks(t_22, operand_address(matrix, {2 + row, 2 + i}, lane));
      multiply_add<__half>(strip, t_22, right[i][0], right[i][1]);
    }
    store_times_beta<T>(tile, strip, beta, 32 + 16 * row, 2 * column + half, lane);
  }
}

}  // namespace thalweg::cu
