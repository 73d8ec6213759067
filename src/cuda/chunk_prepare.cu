// First pass of the chunked gated delta rule: everything about a chunk that does not need the state.
//
// One block of four warps per chunk and key head. Warp w computes rows 16w..16w+15 of k k^T and q k^T on the tensor
// cores, up to the diagonal. Then, for each value head of the key head: gates, decays, the inverse, the record.
//
// The inverse of the unit lower triangular 64 x 64 matrix: warp w inverts diagonal block w by substitution in f32, a
// lane a column; then warp j fills column block j downwards, T_ij = -T_ii sum_m A_im T_mj, with tf32 products.

#include "cuda/chunk_kernels.h"
#include "cuda/device/async_copy.h"
#include "cuda/device/fragments.h"
#include "cuda/device/scalars.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 128;
constexpr int kPitch = kChunk + 4;  // of f32 matrices in shared memory: fragments read without bank conflicts
constexpr float kLog2e = 1.4426950408889634F;

template <int K>
constexpr int kTileBytes = kChunk * K * 2;

// After the products the tiles' space holds A and T.
template <int K>
constexpr int kSharedBytes = (2 * kTileBytes<K> > 2 * kChunk * kPitch * 4 ? 2 * kTileBytes<K>
                                                                           : 2 * kChunk * kPitch * 4) +
                             1024;

struct Scalars {
  float g[kChunk];     // summed
  float beta[kChunk];
  float k_factor[kChunk];
  float q_factor[kChunk];
  float half_sum;  // of the first 32 gates
};

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

// x[16,16] of blocks (i,j) of a matrix in shared memory, as the two accumulators of a product of 16 x 16 blocks:
// sum += a(i,m) b(m,j).
__device__ void multiply_blocks(float (&sum)[2][4], const float* a, const float* b, int lane) {
  const int row = lane / 4;
  const int column = lane % 4;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    std::uint32_t left[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      left[i] = to_tf32(a[(row + i % 2 * 8) * kPitch + step * 8 + column + i / 2 * 4]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* right = b + (step * 8 + column) * kPitch + half * 8 + row;
      multiply_add_tf32(sum[half], left, to_tf32(right[0]), to_tf32(right[4 * kPitch]));
    }
  }
}

__device__ void store_block(float* to, const float (&sum)[2][4], float sign, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* place = to + lane / 4 * kPitch + half * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(place) = {sign * sum[half][0], sign * sum[half][1]};
    *reinterpret_cast<float2*>(place + 8 * kPitch) = {sign * sum[half][2], sign * sum[half][3]};
  }
}

// t = (I + a)^-1 for a strictly lower triangular; cells of both above the diagonal blocks are neither read nor written.
// By the whole block; ends with a barrier.
__device__ void invert(const float* a, float* t, int warp, int lane) {
  const auto block = [](auto* matrix, int i, int j) { return matrix + i * 16 * kPitch + j * 16; };
  {
    const float* diagonal = block(a, warp, warp);
    const int column = lane % 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float sum = i == column ? 1.0F : 0.0F;
#pragma unroll
      for (int m = 0; m < i; ++m) sum -= diagonal[i * kPitch + m] * x[m];
      x[i] = sum;
    }
    if (lane < 16) {
#pragma unroll
      for (int i = 0; i < 16; ++i) block(t, warp, warp)[i * kPitch + column] = x[i];
    }
  }
  __syncthreads();
  for (int i = warp + 1; i < 4; ++i) {
    float sum[2][4] = {};
    for (int m = warp; m < i; ++m) multiply_blocks(sum, block(a, i, m), block(t, m, warp), lane);
    store_block(block(t, i, warp), sum, 1.0F, lane);
    __syncwarp();
    float product[2][4] = {};
    multiply_blocks(product, block(t, i, i), block(t, i, warp), lane);
    __syncwarp();
    store_block(block(t, i, warp), product, -1.0F, lane);
    __syncwarp();
  }
  __syncthreads();
}

template <class T, int K>
__global__ void __launch_bounds__(kThreads) chunk_prepare(const __grid_constant__ ChunkArguments args) {
  extern __shared__ __align__(1024) std::byte shared[];
  __shared__ Scalars scalars;
  const int slot = static_cast<int>(blockIdx.x);
  const int key_head = static_cast<int>(blockIdx.y);
  const int n = args.map.sequence_of(slot);
  const SequenceMap::Sequence sequence = args.map.sequence(n);
  const int first = (slot - args.map.first_slot(n)) * kChunk;
  if (first < 0 || first >= sequence.length) return;
  const int begin = sequence.begin + first;
  const int length = min(kChunk, sequence.length - first);

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const std::uint32_t tiles = shared_address(shared);
  for (int i = thread; i < kChunk * (K / 8); i += kThreads) {
    const int row = i / (K / 8);
    const int piece = i % (K / 8);
    const bool valid = row < length;
    const int token = valid ? begin + row : begin;
    const std::uint32_t place = static_cast<std::uint32_t>(piece / 8 * (kChunk * 128)) + swizzled(row, piece % 8);
    const auto source = [&](const TensorView<const void>& tensor) {
      const TensorView<const T> typed{static_cast<const T*>(tensor.data),
                                      {tensor.strides[0], tensor.strides[1], tensor.strides[2], 0}};
      return typed.row(sequence.row, token, key_head) + piece * 8;
    };
    copy_16_bytes(tiles + place, source(args.k), valid);
    copy_16_bytes(tiles + kTileBytes<K> + place, source(args.q), valid);
  }
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();

  // kk[block][.] and qk[block][.]: rows 16 warp + lane / 4 and that + 8, columns 8 block + 2 (lane % 4) and the next.
  float kk[8][4] = {};
  float qk[8][4] = {};
  {
    const int row = 16 * warp + lane % 16;
    const int column_row = lane % 8 + (lane / 16) * 8;
    const int column_piece = lane / 8 % 2;
#pragma unroll 2
    for (int step = 0; step < K / 16; ++step) {
      const std::uint32_t half = tiles + static_cast<std::uint32_t>(step / 4 * (kChunk * 128));
      const int piece = step % 4 * 2;
      std::uint32_t k_rows[4];
      std::uint32_t q_rows[4];
      load_blocks(k_rows, half + swizzled(row, piece + lane / 16));
      load_blocks(q_rows, half + kTileBytes<K> + swizzled(row, piece + lane / 16));
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        if (pair > warp) break;
        std::uint32_t columns[4];
        load_blocks(columns, half + swizzled(16 * pair + column_row, piece + column_piece));
        multiply_add<T>(kk[2 * pair], k_rows, columns[0], columns[1]);
        multiply_add<T>(kk[2 * pair + 1], k_rows, columns[2], columns[3]);
        multiply_add<T>(qk[2 * pair], q_rows, columns[0], columns[1]);
        multiply_add<T>(qk[2 * pair + 1], q_rows, columns[2], columns[3]);
      }
    }
  }
  if (args.normalize) {
    const float k_sum = sum_of_squares<T, K>(shared, thread / 2, thread % 2);
    const float q_sum = sum_of_squares<T, K>(shared + kTileBytes<K>, thread / 2, thread % 2);
    // A row of zeros past the end of the chunk stays zero.
    const bool valid = thread / 2 < length;
    scalars.k_factor[thread / 2] = valid ? rsqrtf(k_sum + args.norm_eps) : 0.0F;
    scalars.q_factor[thread / 2] = valid ? rsqrtf(q_sum + args.norm_eps) : 0.0F;
  } else if (thread < kChunk) {
    scalars.k_factor[thread] = 1.0F;
    scalars.q_factor[thread] = 1.0F;
  }

  auto* a = reinterpret_cast<float*>(shared);
  float* t = a + kChunk * kPitch;
  const int heads = args.hv / args.hk;
  for (int j = 0; j < heads; ++j) {
    const int head = args.tiled ? key_head + j * args.hk : key_head * heads + j;
    std::byte* record =
        args.records + (static_cast<std::int64_t>(slot) * args.hv + head) * static_cast<std::int64_t>(ChunkRecord::kBytes);
    // Gates, summed over the chunk by two warps.
    float g = 0.0F;
    if (thread < kChunk) {
      float beta = 0.0F;
      if (thread < length) {
        const int token = begin + thread;
        if (args.gate_a.tensor.data != nullptr) {
          const Gate gate = compute_gate(load_scalar(args.gate_a, sequence.row, token, head),
                                         load_scalar(args.gate_b, sequence.row, token, head),
                                         load_scalar(args.a_log, head), load_scalar(args.dt_bias, head));
          g = gate.g;
          beta = gate.beta;
        } else {
          g = args.g.row(sequence.row, token)[head];
          beta = args.beta.row(sequence.row, token)[head];
        }
      }
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const float other = __shfl_up_sync(0xFFFFFFFFU, g, distance);
        if (lane >= distance) g += other;
      }
      if (thread == 31) scalars.half_sum = g;
      scalars.beta[thread] = beta;
    }
    __syncthreads();  // also: nobody reads the tiles, or A and T of the head before, any more
    if (thread < kChunk) scalars.g[thread] = warp == 1 ? g + scalars.half_sum : g;
    __syncthreads();

    const int row = 16 * warp + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + 8 * half;
      const float g_i = scalars.g[i];
      const float a_factor = scalars.beta[i] * scalars.k_factor[i];
      const float p_factor = args.scale * scalars.q_factor[i];
#pragma unroll
      for (int block = 0; block < 8; ++block) {
        const int column = 8 * block + lane % 4 * 2;
        float p[2] = {0.0F, 0.0F};
        if (block <= 2 * warp + 1) {
          float below[2];
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const bool reached = column + c <= i;
            const float decay =
                reached ? exp2f((g_i - scalars.g[column + c]) * kLog2e) * scalars.k_factor[column + c] : 0.0F;
            below[c] = reached ? a_factor * decay * kk[block][2 * half + c] : 0.0F;
            p[c] = reached ? p_factor * decay * qk[block][2 * half + c] : 0.0F;
          }
          *reinterpret_cast<float2*>(a + i * kPitch + column) = {below[0], below[1]};
        }
        *reinterpret_cast<std::uint32_t*>(record + ChunkRecord::kP + swizzled(i, block) + lane % 4 * 4) =
            pack<T>(p[0], p[1]);
      }
    }
    __syncthreads();
    invert(a, t, warp, lane);

    // T diag(beta), 8 columns of a row at a time.
    for (int i = thread; i < kChunk * 8; i += kThreads) {
      const int t_row = i / 8;
      const int piece = i % 8;
      float values[8];
      *reinterpret_cast<float4*>(values) = *reinterpret_cast<const float4*>(t + t_row * kPitch + piece * 8);
      *reinterpret_cast<float4*>(values + 4) = *reinterpret_cast<const float4*>(t + t_row * kPitch + piece * 8 + 4);
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const int column = piece * 8 + c;
        values[c] = column <= t_row ? values[c] * scalars.beta[column] : 0.0F;
      }
      *reinterpret_cast<uint4*>(record + ChunkRecord::kT + swizzled(t_row, piece)) = {
          pack<T>(values[0], values[1]), pack<T>(values[2], values[3]), pack<T>(values[4], values[5]),
          pack<T>(values[6], values[7])};
    }
    if (thread < kChunk) {
      const float total = scalars.g[thread];
      const float last = scalars.g[kChunk - 1];  // gates past the end are 0
      const float decay = exp2f(total * kLog2e);
      reinterpret_cast<float*>(record + ChunkRecord::kX)[thread] = scalars.k_factor[thread] * decay;
      reinterpret_cast<float*>(record + ChunkRecord::kD)[thread] =
          scalars.k_factor[thread] * exp2f((last - total) * kLog2e);
      reinterpret_cast<float*>(record + ChunkRecord::kO)[thread] = args.scale * scalars.q_factor[thread] * decay;
      if (thread == 0) *reinterpret_cast<float*>(record + ChunkRecord::kDecay) = exp2f(last * kLog2e);
    }
    __syncthreads();
  }
}

template <class T, int K>
void launch(const ChunkArguments& args, cudaStream_t stream) {
  static constexpr std::string_view kOperation = "chunk_gated_delta_rule";
  if (args.slots == 0) return;
  allow_shared_memory(reinterpret_cast<const void*>(chunk_prepare<T, K>), kSharedBytes<K>, kOperation);
  const dim3 grid(static_cast<unsigned>(args.slots), static_cast<unsigned>(args.hk));
  chunk_prepare<T, K><<<grid, kThreads, kSharedBytes<K>, stream>>>(args);
  check(cudaGetLastError(), kOperation);
}

}  // namespace

void launch_chunk_prepare(const ChunkArguments& args, DType dtype, cudaStream_t stream) {
  const bool bf16 = dtype == DType::kBF16;
  if (args.key_width == 128) {
    bf16 ? launch<__nv_bfloat16, 128>(args, stream) : launch<__half, 128>(args, stream);
  } else {
    bf16 ? launch<__nv_bfloat16, 64>(args, stream) : launch<__half, 64>(args, stream);
  }
}

}  // namespace thalweg::cu
