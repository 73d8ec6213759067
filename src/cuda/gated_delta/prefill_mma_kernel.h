#pragma once

// Second pass of the chunked gated delta rule by mma.sync, for compute capability 8.0 and later.
//
// Roles: a warp has 16 rows of one head's state S [V,K] in f32 registers and needs no other warp's results. If only
//   half of the warps have rows, the others copy; else all copy.
// Shared memory: tiles of k (two chunks for K up to 128) and q, the record; v of each warp, which its output
//   overwrites.
// Pipeline: a chunk has three steps. After each, a barrier lets the next chunk's copies overwrite what no later step
//   reads: q after X and S q^T, the record and v after V' and O, k after S (if single, 64 columns at a time).
// Everything is transposed, so that each product's result is the next left operand, in registers (accumulators and
// operands have the same layout, except for the rounding to 16 bits):
//
//   X^T = S k^T
//   Y^T = v^T - X^T x
//   V'^T = Y^T beta + Y^T T^T
//   O^T = (S q^T) o + V'^T P^T
//   S = S decay + (V'^T d) k

#include <cstdint>

#include "cuda/common/async_copy.h"
#include "cuda/common/mma.h"
#include "cuda/common/pdl.h"
#include "cuda/common/warp.h"
#include "cuda/gated_delta/chunk_work.h"
#include "cuda/gated_delta/state_rows.h"

namespace thalweg::cu {

constexpr int kScanThreads = 128;
constexpr int kScanWarpRows = 16;  // of the state

// Shared memory: k, q, the record; then v of each warp.
template <int K>
struct ScanShared {
  static constexpr int kTiles = K / kTileColumns;
  static constexpr int kTile = kChunk * 128;
  static constexpr int kKeyStages = K > 128 ? 1 : 2;  // all fits into the 99 KB of the smaller GPUs
  static constexpr int kQueries = kKeyStages * kTiles * kTile;
  static constexpr int kRecord = kQueries + kTiles * kTile;
  static constexpr int kValues = kRecord + (ChunkRecord::kBytes + 127) / 128 * 128;
  static constexpr int kWarpValues = kChunk * kScanWarpRows * 2;
  static constexpr int bytes(int warps) { return kValues + warps * kWarpValues; }
};

// The offset of eight columns of a token in a warp's v or output, [64,16]. Neither eight tokens nor a token's columns
// conflict in the banks.
__device__ inline std::uint32_t warp_value_offset(int token, int half) {
  return static_cast<std::uint32_t>(token * 32 + ((half ^ (token >> 2 & 1)) << 4));
}

// A block's constants, in shared memory to save registers.
struct ScanPlan {
  Work work;
  const void* keys;  // of the first chunk: k, q, v
  const void* queries;
  const void* values;
};

// The copies of chunks into shared memory. Groups of 64 threads have eight rows of 16-byte vectors each, so that a
// thread's swizzle is always the same and its addresses differ by constants.
template <class T, int K>
struct ChunkCopies {
  using S = ScanShared<K>;
  static constexpr int kGroup = 64;

  const ChunkArguments& args;
  const ScanPlan& plan;
  std::uint32_t shared;
  int group;  // of the thread, negative if it copies nothing
  int groups;

  // 64 kTiles columns of a chunk's k or q.
  template <int kTiles>
  __device__ void columns(const void* tensor, std::int64_t stride, std::uint32_t to, int chunk, int first_tile) const {
    if (group < 0 || chunk >= plan.work.chunks) return;
    const int row = static_cast<int>(threadIdx.x) % kGroup / 8;
    const int vector = static_cast<int>(threadIdx.x) % 8;
    const int length = plan.work.length - chunk * kChunk;
    const T* from = static_cast<const T*>(tensor) + (chunk * kChunk + row + 8 * group) * stride +
                    first_tile * kTileColumns + vector * 8;
    const std::int64_t step = 8 * groups * stride;
    to += swizzled(row, vector) + static_cast<std::uint32_t>(group * 1024);
    const std::uint32_t to_step = static_cast<std::uint32_t>(groups * 1024);
#pragma unroll(kTiles > 2 ? 2 : 4)
    for (int i = 0; i < 8 / groups; ++i) {
      const bool valid = row + 8 * (i * groups + group) < length;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        // A row past the end is not read, but its address may be checked.
        copy_16_bytes(to + static_cast<std::uint32_t>(tile * S::kTile), valid ? from + tile * kTileColumns : tensor,
                      valid);
      }
      from += step;
      to += to_step;
    }
  }

  __device__ std::uint32_t keys_address(int chunk) const {
    return shared + static_cast<std::uint32_t>(chunk % S::kKeyStages * S::kTiles * S::kTile);
  }
  __device__ void keys(int chunk) const {
    columns<S::kTiles>(plan.keys, args.k.strides[1], keys_address(chunk), chunk, 0);
  }
  __device__ void queries(int chunk) const {
    columns<S::kTiles>(plan.queries, args.q.strides[1], shared + S::kQueries, chunk, 0);
  }

  __device__ void record(int chunk) const {
    if (group < 0 || chunk >= plan.work.chunks) return;
    constexpr int kVectors = ChunkRecord::kBytes / 16;
    const int first = static_cast<int>(threadIdx.x) % kGroup + group * kGroup;
    const int step = groups * kGroup;
    const std::byte* from =
        plan.work.records + static_cast<std::int64_t>(chunk) * args.hv * ChunkRecord::kPitch + first * 16;
    std::uint32_t to = shared + static_cast<std::uint32_t>(S::kRecord + first * 16);
#pragma unroll 6
    for (int i = first; i < kVectors; i += step) {
      copy_16_bytes(to, from, true);
      from += step * 16;
      to += static_cast<std::uint32_t>(step * 16);
    }
  }

  // The calling warp's 16 columns of v.
  __device__ void values(int chunk, int warp, std::uint32_t to, int lane) const {
    if (chunk >= plan.work.chunks) return;
    const int length = plan.work.no_values ? 0 : plan.work.length - chunk * kChunk;
    const void* tensor = plan.values;
    const T* from = static_cast<const T*>(tensor) + (chunk * kChunk + lane / 2) * args.v.strides[1] +
                    warp * kScanWarpRows + lane % 2 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = lane / 2 + 16 * i;
      copy_16_bytes(to + warp_value_offset(token, lane % 2), token < length ? from : tensor, token < length);
      from += 16 * args.v.strides[1];
    }
  }
};

// Calls use(i, blocks) for i = 0..kCount - 1 with what load(i, blocks) has read from shared memory kAhead steps before:
// a warp is in order, and often alone on its scheduler.
template <int kCount, int kAhead, class Load, class Use>
__device__ void read_ahead(Load load, Use use) {
  std::uint32_t blocks[kAhead + 1][4];
#pragma unroll
  for (int i = 0; i < kCount + kAhead; ++i) {
    if (i < kCount) load(i, blocks[i % (kAhead + 1)]);
    if (i >= kAhead) use(i - kAhead, blocks[(i - kAhead) % (kAhead + 1)]);
  }
}

// A warp's 16 rows of a state, and what it holds of the current chunk.
template <class T, int K>
struct StateRows {
  using S = ScanShared<K>;
  static constexpr int kAhead = K > 128 ? 3 : 5;

  float s[K / 2];
  float x[8][4];  // X^T, then Y^T beta, then V'^T
  float o[8][4];
  std::uint32_t decayed[4][4];  // V'^T d
  float decay;

  __device__ float (&state(int block))[4] { return reinterpret_cast<float(&)[4]>(s[4 * block]); }

  // X^T = S k^T and, if the chunk has an output, O^T = S q^T
  template <bool kOutput>
  __device__ void read(std::uint32_t keys, std::uint32_t queries, int lane) {
    constexpr int kBlocks = kOutput ? 8 : 4;  // of a step: 16 tokens each, of k, then of q
    const std::uint32_t offset = swizzled(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i][j] = o[i][j] = 0.0F;
    }
    std::uint32_t rows[4];
    read_ahead<K / 16 * kBlocks, kAhead>(
        [&](int i, std::uint32_t(&blocks)[4]) {
          const int step = i / kBlocks;
          load_blocks(blocks, (i % kBlocks < 4 ? keys : queries) +
                                  (offset ^ static_cast<std::uint32_t>(step % 4 * 32)) +
                                  static_cast<std::uint32_t>(step / 4 * S::kTile + i % 4 * 16 * 128));
        },
        [&](int i, const std::uint32_t(&blocks)[4]) {
          if (i % kBlocks == 0) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              rows[j] = pack<T>(s[i / kBlocks * 8 + 2 * j], s[i / kBlocks * 8 + 2 * j + 1]);
            }
          }
          float(&sum)[8][4] = i % kBlocks < 4 ? x : o;
          multiply_add<T>(sum[i % 4 * 2], rows, blocks[0], blocks[1]);
          multiply_add<T>(sum[i % 4 * 2 + 1], rows, blocks[2], blocks[3]);
        });
  }

  // sum += left m^T, m being T or P, reading only the blocks on and below the diagonal.
  __device__ static void multiply_triangle(float (&sum)[8][4], const std::uint32_t (&left)[4][4], std::uint32_t matrix,
                                           int lane) {
    // Column by column, so that consecutive products add to different sums.
    const auto column = [](int n) { return n < 4 ? 0 : n < 7 ? 1 : n < 9 ? 2 : 3; };
    const auto row = [](int n) { return n < 4 ? n : n < 7 ? n - 3 : n < 9 ? n - 5 : 3; };
    read_ahead<10, kAhead>(
        [&](int n, std::uint32_t(&blocks)[4]) {
          load_blocks(blocks,
                      matrix + ChunkRecord::offset(16 * row(n) + lane % 8 + lane / 16 * 8, column(n), lane / 8 % 2));
        },
        [&](int n, const std::uint32_t(&blocks)[4]) {
          multiply_add<T>(sum[2 * row(n)], left[column(n)], blocks[0], blocks[1]);
          multiply_add<T>(sum[2 * row(n) + 1], left[column(n)], blocks[2], blocks[3]);
        });
  }

  // V'^T and O^T from the chunk's record and the warp's v.
  template <bool kOutput>
  __device__ void correct(const std::byte* record_bytes, std::uint32_t record, std::uint32_t values, int lane) {
    const auto scalars = [&](int offset, int block) {
      return *reinterpret_cast<const float2*>(record_bytes + offset + block * 32 + lane % 4 * 8);
    };
    std::uint32_t y[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_blocks_transposed(y[i], values + warp_value_offset(lane / 16 * 8 + lane % 8, lane / 8 % 2) +
                                       static_cast<std::uint32_t>(i * 512));
    }
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      const float2 factor = scalars(ChunkRecord::kX, block);
      const float2 beta = scalars(ChunkRecord::kBeta, block);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t& packed = y[block / 2][block % 2 * 2 + half];
        const float2 v = unpack<T>(packed);
        const float low = v.x - x[block][2 * half] * factor.x;
        const float high = v.y - x[block][2 * half + 1] * factor.y;
        packed = pack<T>(low, high);
        x[block][2 * half] = low * beta.x;
        x[block][2 * half + 1] = high * beta.y;
      }
    }
    multiply_triangle(x, y, record + ChunkRecord::kT, lane);
    std::uint32_t plain[4][4];
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      const float2 factor = scalars(ChunkRecord::kD, block);
      const float2 scale = kOutput ? scalars(ChunkRecord::kO, block) : float2{};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = x[block][2 * half];
        const float high = x[block][2 * half + 1];
        plain[block / 2][block % 2 * 2 + half] = pack<T>(low, high);
        decayed[block / 2][block % 2 * 2 + half] = pack<T>(low * factor.x, high * factor.y);
        o[block][2 * half] *= scale.x;
        o[block][2 * half + 1] *= scale.y;
      }
    }
    if constexpr (kOutput) multiply_triangle(o, plain, record + ChunkRecord::kP, lane);
    decay = *reinterpret_cast<const float*>(record_bytes + ChunkRecord::kDecay);
  }

  // Stores O; 16-bit outputs pass through the warp's v in shared memory.
  __device__ void store_output(const ChunkArguments& args, const Work& work, int chunk, int first_row,
                               std::byte* values, int lane) const {
    const int length = work.length - chunk * kChunk;
    const std::int64_t at = work.row * args.o.strides[0] + (work.begin + chunk * kChunk) * args.o.strides[1] +
                            work.head * args.o.strides[2] + first_row;
    if (args.o_is_f32) {
      float* to = static_cast<float*>(args.o.data) + at + lane / 4;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (token < length) to[token * args.o.strides[1] + i / 2 % 2 * 8] = o[i / 4][i % 4];
      }
      return;
    }
    __syncwarp();  // all lanes have read v
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<std::uint32_t*>(values + warp_value_offset(8 * block + lane / 4, half) + lane % 4 * 4) =
            transposed(pack<T>(o[block][2 * half], o[block][2 * half + 1]));
      }
    }
    __syncwarp();
    T* to = static_cast<T*>(args.o.data) + at + lane / 2 * args.o.strides[1] + lane % 2 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = lane / 2 + 16 * i;
      const uint4 vector = *reinterpret_cast<const uint4*>(values + warp_value_offset(token, lane % 2));
      if (token < length) __stcs(reinterpret_cast<uint4*>(to), vector);
      to += 16 * args.o.strides[1];
    }
  }

  __device__ void decay_state() {
#pragma unroll
    for (float& value : s) value *= decay;
  }

  // S += (V'^T d) k, 64 kTiles columns.
  template <int kTiles>
  __device__ void write(std::uint32_t keys, int first_tile, int lane) {
    const std::uint32_t offset = swizzled(lane % 16, lane / 16);
    read_ahead<16 * kTiles, kAhead>(
        [&](int n, std::uint32_t(&blocks)[4]) {
          const int tokens = n / (4 * kTiles);
          const int column = n % (4 * kTiles);
          load_blocks_transposed(
              blocks, keys + (offset ^ static_cast<std::uint32_t>(column % 4 * 32)) +
                          static_cast<std::uint32_t>((first_tile + column / 4) * S::kTile + tokens * 16 * 128));
        },
        [&](int n, const std::uint32_t(&blocks)[4]) {
          const int block = 8 * first_tile + n % (4 * kTiles) * 2;
          multiply_add<T>(state(block), decayed[n / (4 * kTiles)], blocks[0], blocks[1]);
          multiply_add<T>(state(block + 1), decayed[n / (4 * kTiles)], blocks[2], blocks[3]);
        });
  }
};

// The first `warps` warps have rows of the state.
template <class T, int K>
__global__ void __launch_bounds__(kScanThreads, K > 64 ? 2 : 3)
    chunk_scan_mma(const __grid_constant__ ChunkArguments args, const Pass pass, const int warps) {
  using S = ScanShared<K>;
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ ScanPlan plan;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  pdl_trigger_and_wait();
  if (warp == 0) {
    const Work work = find_work(args, pass, warps * kScanWarpRows);
    if (lane == 0) {
      const auto first = [&](const TensorView<const void>& tensor, int head, int column) {
        return static_cast<const T*>(tensor.data) + work.row * tensor.strides[0] + work.begin * tensor.strides[1] +
               head * tensor.strides[2] + column;
      };
      plan = {work, first(args.k, work.key_head, 0), first(args.q, work.key_head, 0),
              first(args.v, work.head, work.first_row)};
    }
  }
  __syncthreads();
  const Work& work = plan.work;
  if (!work.valid) return;
  const bool computes = warp < warps;
  const int first_copier = warps * 32 < kScanThreads ? warps * 32 : 0;
  const std::uint32_t base = shared_address(shared);
  constexpr int kGroup = ChunkCopies<T, K>::kGroup;
  const int copier = static_cast<int>(threadIdx.x) - first_copier;
  const ChunkCopies<T, K> copies{args, plan, base, copier < 0 ? -1 : copier / kGroup,
                                 (kScanThreads - first_copier) / kGroup};
  const int first_row = work.first_row + warp * kScanWarpRows;
  const int values = S::kValues + warp * S::kWarpValues;
  const std::uint32_t values_address = base + static_cast<std::uint32_t>(values);
  const auto copy_values = [&](int chunk) {
    if (computes) copies.values(chunk, warp, values_address, opaque(lane));
  };

  copies.keys(0);
  commit_copies();
  copies.queries(0);
  commit_copies();
  copies.record(0);
  copy_values(0);
  commit_copies();

  StateRows<T, K> rows;
  if (computes) load_state(args, work, first_row, lane, rows.s);
  const int chunks = work.chunks;
  const int warmup = work.warmup;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const std::uint32_t keys = copies.keys_address(chunk);
    if (computes && args.checkpoints.data != nullptr) {
      store_checkpoint(args, work, chunk, first_row, opaque(lane), rows.s);
    }
    if constexpr (S::kKeyStages == 2) {
      wait_for_copies<1>();  // k and q
      __syncthreads();
      copies.keys(chunk + 1);
      commit_copies();
    } else {
      wait_for_copies<0>();
      __syncthreads();
    }
    const bool has_output = chunk >= warmup;
    if (computes && has_output) rows.template read<true>(keys, base + S::kQueries, opaque(lane));
    if (computes && !has_output) rows.template read<false>(keys, base + S::kQueries, opaque(lane));
    if constexpr (S::kKeyStages == 2) wait_for_copies<1>();  // the record and v
    __syncthreads();
    copies.queries(chunk + 1);
    commit_copies();
    if (computes && has_output) {
      rows.template correct<true>(shared + S::kRecord, base + S::kRecord, values_address, opaque(lane));
      rows.store_output(args, work, chunk, first_row, shared + values, opaque(lane));
    }
    if (computes && !has_output) {
      rows.template correct<false>(shared + S::kRecord, base + S::kRecord, values_address, opaque(lane));
    }
    __syncthreads();
    copies.record(chunk + 1);
    copy_values(chunk + 1);
    commit_copies();
    if (computes) rows.decay_state();
    if constexpr (S::kKeyStages == 2) {
      if (computes) rows.template write<S::kTiles>(keys, 0, opaque(lane));
    } else {
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        if (computes) rows.template write<1>(keys, tile, opaque(lane));
        __syncthreads();
        copies.template columns<1>(plan.keys, args.k.strides[1], keys + static_cast<std::uint32_t>(tile * S::kTile),
                                   chunk + 1, tile);
        commit_copies();
      }
    }
  }
  if (computes) store_state(args, work, first_row, lane, rows.s);
}

}  // namespace thalweg::cu
