// Second pass of the chunked gated delta rule on Hopper: walks through a sequence with the state in registers.
//
// A block owns 64 kGroups rows of one head's state S [V,K], 64 per consumer warpgroup, and goes through the chunks of
// one sequence. With everything transposed, each product's result is the next one's left operand and never leaves the
// registers (accumulators and operands have the same layout but for the rounding to 16 bits):
//
//   X^T = S k^T    Y^T = v^T - X^T x    V'^T = Y^T beta + Y^T T^T    O^T = (S q^T) o + V'^T P^T    S = S decay + (V'^T
//   d) k
//
// The two warpgroups never wait for each other, so that one's products fill the other's arithmetic. A third warpgroup
// copies the chunks' tiles into a ring of shared memory ahead of them, and the outputs from there to their place: a
// consumer leaves a chunk's output where the chunk's v was.
//
// Within a chunk the tensor cores get the products in an order that leaves them no pause: what the state waits for
// (X, V', S) first, and the output's products in the gaps in which a consumer turns results into operands.

#include "cuda/chunk_kernels.h"
#include "cuda/device/async_copy.h"
#include "cuda/device/barrier.h"
#include "cuda/device/chunk_state.h"
#include "cuda/device/chunk_work.h"
#include "cuda/device/fragments.h"
#include "cuda/device/launch_order.h"
#include "cuda/device/wgmma.h"
#include "cuda/launch.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::cu::sm90 {
namespace {

constexpr int kWarpgroup = 128;
constexpr int kRows = 64;            // of the state, per consumer warpgroup
constexpr int kTile = kChunk * 128;  // bytes of a tile of 64 tokens x 64 columns

// A stage of the ring: k, q, v, record.
template <int K, int kGroups>
struct Ring {
  static constexpr int kKeys = K / kTileColumns * kTile;
  static constexpr int kQueries = kKeys;
  static constexpr int kValues = 2 * kKeys;
  static constexpr int kRecord = kValues + kGroups * kTile;
  static constexpr int kStageBytes = (kRecord + ChunkRecord::kBytes + 1023) / 1024 * 1024;
  static constexpr int kStages = 3;
  static constexpr int kBytes = kStages * kStageBytes;
  static constexpr int kSharedBytes = kBytes + 1024;  // room to align
};

template <int kStages>
struct Barriers {
  std::uint64_t full[kStages];
  std::uint64_t done[kStages];
};

__device__ inline void store_blocks_transposed(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                               std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

template <class T, int K, int kGroups>
__device__ void copy_chunks(const ChunkArguments& args, const Work& work, std::uint32_t ring, std::byte* ring_bytes,
                            std::uint32_t full, std::uint32_t done) {
  using R = Ring<K, kGroups>;
  constexpr int kKeyPieces = K / 8;
  constexpr int kKeyRows = kWarpgroup / kKeyPieces;  // a multiple of 8: a thread's swizzle is always the same
  constexpr int kValuePieces = kGroups * 8;
  constexpr int kValueRows = kWarpgroup / kValuePieces;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const auto base = [&](const auto& tensor, int head, int column) {
    return tensor.strides[0] * work.row + tensor.strides[1] * work.begin + tensor.strides[2] * head + column;
  };
  const int key_row = thread / kKeyPieces;
  const int key_piece = thread % kKeyPieces;
  const int value_row = thread / kValuePieces;
  const int value_piece = thread % kValuePieces;
  const T* k =
      static_cast<const T*>(args.k.data) + base(args.k, work.key_head, key_piece * 8) + key_row * args.k.strides[1];
  const T* q =
      static_cast<const T*>(args.q.data) + base(args.q, work.key_head, key_piece * 8) + key_row * args.q.strides[1];
  const T* v = static_cast<const T*>(args.v.data) + base(args.v, work.head, work.first_row + value_piece * 8) +
               value_row * args.v.strides[1];
  T* o = static_cast<T*>(args.o.data) + base(args.o, work.head, work.first_row + value_piece * 8) +
         value_row * args.o.strides[1];
  const std::int64_t k_step = kKeyRows * args.k.strides[1];
  const std::int64_t q_step = kKeyRows * args.q.strides[1];
  const std::int64_t v_step = kValueRows * args.v.strides[1];
  const std::int64_t o_step = kValueRows * args.o.strides[1];
  const std::uint32_t key_place = static_cast<std::uint32_t>(key_piece / 8 * kTile) + swizzled(key_row, key_piece % 8);
  const std::uint32_t value_place =
      static_cast<std::uint32_t>(R::kValues + value_piece / 8 * kTile) + swizzled(value_row, value_piece % 8);
  const std::byte* record = work.records;
  const std::int64_t record_step = static_cast<std::int64_t>(args.hv) * ChunkRecord::kPitch;

  int loaded = 0;  // tokens
  const auto load = [&](int stage) {
    const int length = work.length - loaded;  // those of this chunk and after
    if (length > 0) {
      const std::uint32_t place = ring + static_cast<std::uint32_t>(stage * R::kStageBytes);
      if (thread == 0) {
        barrier_arrive_expecting(full + 8 * stage, ChunkRecord::kBytes);
        bulk_copy(place + R::kRecord, record, ChunkRecord::kBytes, full + 8 * stage);
      }
      record += record_step;
#pragma unroll
      for (int i = 0; i < kChunk / kKeyRows; ++i) {
        const bool valid = key_row + i * kKeyRows < length;
        const std::uint32_t to = place + key_place + static_cast<std::uint32_t>(i * kKeyRows * 128);
        copy_16_bytes(to, valid ? k : args.k.data, valid);
        copy_16_bytes(to + R::kQueries, valid ? q : args.q.data, valid);
        k += k_step;
        q += q_step;
      }
#pragma unroll
      for (int i = 0; i < kChunk / kValueRows; ++i) {
        const bool valid = !work.no_values && value_row + i * kValueRows < length;
        copy_16_bytes(place + value_place + static_cast<std::uint32_t>(i * kValueRows * 128), valid ? v : args.v.data,
                      valid);
        v += v_step;
      }
      loaded += kChunk;
    }
    commit_copies();
  };
  const auto announce = [&](int stage) {
    fence_for_async_reads();
    barrier_arrive(full + 8 * stage);
  };

  static_assert(R::kStages == 3);
  for (int stage = 0; stage < R::kStages; ++stage) load(stage);
  wait_for_copies<2>();
  if (work.chunks > 0) announce(0);
  int stage = 0;
  for (int chunk = 0; chunk < work.chunks; ++chunk) {
    const int next = stage == R::kStages - 1 ? 0 : stage + 1;
    wait_for_copies<1>();
    if (chunk + 1 < work.chunks) announce(next);
    barrier_wait(done + 8 * stage, chunk / R::kStages % 2);
    if (!args.o_is_f32) {
      const int length = chunk < work.silent ? 0 : work.length - chunk * kChunk;
      const std::byte* from = ring_bytes + stage * R::kStageBytes + value_place;
#pragma unroll
      for (int i = 0; i < kChunk / kValueRows; ++i) {
        const uint4 piece = *reinterpret_cast<const uint4*>(from + i * kValueRows * 128);
        if (value_row + i * kValueRows < length) __stcs(reinterpret_cast<uint4*>(o), piece);
        o += o_step;
      }
    }
    load(stage);
    stage = next;
  }
}

// Operand of the next product: step i covers columns 16i..16i+15 of the accumulator.
template <class T, int kSteps>
__device__ void to_operand(const float (&sum)[8 * kSteps], std::uint32_t (&operand)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kSteps; ++i) operand[i / 4][i % 4] = pack<T>(sum[2 * i], sum[2 * i + 1]);
}

template <class T, int K, int kGroups>
__device__ void consume(const ChunkArguments& args, const Work& work, std::uint32_t ring, const std::byte* ring_bytes,
                        std::uint32_t full, std::uint32_t done) {
  using R = Ring<K, kGroups>;
  constexpr int kSteps = K / 16;
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int first_row = work.first_row + group * kRows;
  // Where this lane reads v and leaves o, in blocks of eight tokens by eight rows.
  const std::uint32_t block_place = static_cast<std::uint32_t>(R::kValues + group * kTile) +
                                    swizzled(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);

  float s[K / 2];
  load_state(args, work, first_row + 16 * warp, lane, s);
  std::uint32_t s16[kSteps][4];
  to_operand<T, kSteps>(s, s16);
  float o[32] = {};

  // Of a finished chunk: its output to where its v was, and the stage back to the copying warpgroup.
  const auto leave_output = [&](int chunk, int stage) {
    if (args.o_is_f32) {
      const int length = chunk < work.silent ? 0 : work.length - chunk * kChunk;
      float* to = static_cast<float*>(args.o.data) + work.row * args.o.strides[0] +
                  (work.begin + chunk * kChunk) * args.o.strides[1] + work.head * args.o.strides[2] + first_row +
                  16 * warp + lane / 4;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (token < length) to[token * args.o.strides[1] + i / 2 % 2 * 8] = o[i];
      }
    } else {
      const std::uint32_t place = ring + static_cast<std::uint32_t>(stage * R::kStageBytes) + block_place;
      std::uint32_t o16[4][4];
      to_operand<T, 4>(o, o16);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        store_blocks_transposed(place + static_cast<std::uint32_t>(i * 16 * 128), o16[i][0], o16[i][1], o16[i][2],
                                o16[i][3]);
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(done + 8 * stage);
  };

  int stage = 0;
  int last_stage = 0;
  for (int chunk = 0; chunk < work.chunks; ++chunk) {
    const std::uint32_t place = ring + static_cast<std::uint32_t>(stage * R::kStageBytes);
    const std::uint32_t record = place + R::kRecord;
    const auto* scalars = reinterpret_cast<const float2*>(ring_bytes + stage * R::kStageBytes + R::kRecord) + lane % 4;
    if (args.checkpoints.data != nullptr) store_checkpoint(args, work, chunk, first_row + 16 * warp, lane, s);
    barrier_wait(full + 8 * stage, chunk / R::kStages % 2);

    float x[32];
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma<T, false>(x, s16[step], describe_rows(place, step / 4 * kTile + step % 4 * 32), step > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    pin(o);
    if (chunk > 0) leave_output(chunk - 1, last_stage);
    const auto query = [&](int first, int last) {
#pragma unroll
      for (int step = first; step < last; ++step) {
        wgmma<T, false>(o, s16[step], describe_rows(place, R::kQueries + step / 4 * kTile + step % 4 * 32), step > 0);
      }
      wgmma_commit();
    };
    wgmma_fence();
    query(0, kSteps / 2);

    std::uint32_t y[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_blocks_transposed(y[i], place + block_place + static_cast<std::uint32_t>(i * 16 * 128));
    }
    float2 scales[8];
#pragma unroll
    for (int block = 0; block < 8; ++block) scales[block] = scalars[ChunkRecord::kX / 8 + 4 * block];
    const float decay =
        *reinterpret_cast<const float*>(ring_bytes + stage * R::kStageBytes + R::kRecord + ChunkRecord::kDecay);
#pragma unroll
    for (float& value : s) value *= decay;

    // Y^T = v^T - X^T x, and in x the first part of V'^T, Y^T beta
    float2 betas[8];
#pragma unroll
    for (int block = 0; block < 8; ++block) betas[block] = scalars[ChunkRecord::kBeta / 8 + 4 * block];
    wgmma_wait<1>();
    pin(x);
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t& packed = y[block / 2][block % 2 * 2 + half];
        float& low = x[4 * block + 2 * half];
        float& high = x[4 * block + 2 * half + 1];
        const float2 v = unpack<T>(packed);
        low = v.x - low * scales[block].x;
        high = v.y - high * scales[block].y;
        packed = pack<T>(low, high);
        low *= betas[block].x;
        high *= betas[block].y;
      }
    }
    // V'^T += Y^T T^T
    pin(x);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma<T, false>(x, y[step], describe_rows(record, ChunkRecord::kT + step * 32), 1);
    }
    wgmma_commit();
    query(kSteps / 2, kSteps);
#pragma unroll
    for (int block = 0; block < 8; ++block) scales[block] = scalars[ChunkRecord::kD / 8 + 4 * block];
    wgmma_wait<1>();
    pin(x);
    // S += (V'^T d) k
    std::uint32_t decayed[4][4];
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        decayed[block / 2][block % 2 * 2 + half] =
            pack<T>(x[4 * block + 2 * half] * scales[block].x, x[4 * block + 2 * half + 1] * scales[block].y);
      }
    }
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma<T, true>(s, decayed[step], describe_columns(place, step * 2048), 1);
    }
    wgmma_commit();
    // O^T = (S q^T) o + V'^T P^T
    std::uint32_t plain[4][4];
    to_operand<T, 4>(x, plain);
#pragma unroll
    for (int block = 0; block < 8; ++block) scales[block] = scalars[ChunkRecord::kO / 8 + 4 * block];
    wgmma_wait<1>();
    pin(o);
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        o[4 * block + 2 * half] *= scales[block].x;
        o[4 * block + 2 * half + 1] *= scales[block].y;
      }
    }
    pin(o);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma<T, false>(o, plain[step], describe_rows(record, ChunkRecord::kP + step * 32), 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    pin(s);
    to_operand<T, kSteps>(s, s16);
    wgmma_wait<0>();
    pin(o);
    last_stage = stage;
    stage = stage == R::kStages - 1 ? 0 : stage + 1;
  }
  wgmma_wait<0>();
  pin(o);
  if (work.chunks > 0) leave_output(work.chunks - 1, last_stage);
  store_state(args, work, first_row + 16 * warp, lane, s);
}

template <class T, int K, int kGroups>
__global__ void __launch_bounds__((kGroups + 1) * kWarpgroup, 1)
    chunk_scan(const __grid_constant__ ChunkArguments args, const Pass pass) {
  using R = Ring<K, kGroups>;
  extern __shared__ __align__(1024) std::byte shared[];
  __shared__ Barriers<R::kStages> barriers;
  const std::uint32_t full = shared_address(barriers.full);
  const std::uint32_t done = shared_address(barriers.done);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < R::kStages; ++stage) {
      barrier_init(full + 8 * stage, kWarpgroup + 1);
      barrier_init(done + 8 * stage, kGroups * 4);
    }
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_launch_order();
  const Work work = find_work(args, pass, kGroups * kRows);
  if (!work.valid) return;
  const std::uint32_t offset = (1024 - shared_address(shared) % 1024) % 1024;
  const std::uint32_t ring = shared_address(shared) + offset;
  if (threadIdx.x < kWarpgroup) {
    if constexpr (kGroups == 2) give_up_registers<40>();
    copy_chunks<T, K, kGroups>(args, work, ring, shared + offset, full, done);
  } else {
    if constexpr (kGroups == 2) take_registers<232>();
    consume<T, K, kGroups>(args, work, ring, shared + offset, full, done);
  }
}

template <class T, int K, int kGroups>
void launch(const ChunkArguments& args, Pass pass, const DeviceProperties& device, cudaStream_t stream) {
  static constexpr std::string_view kOperation = "chunk_gated_delta_rule";
  constexpr int kBytes = Ring<K, kGroups>::kSharedBytes;
  allow_shared_memory(reinterpret_cast<const void*>(chunk_scan<T, K, kGroups>), kBytes, kOperation);
  const int rows = args.value_width + (pass == Pass::kCarries ? args.key_width : 0);
  const std::int64_t pieces = args.segment_chunks > 0 ? args.segments : args.map.sequences;
  const dim3 grid(static_cast<unsigned>(rows / (kGroups * kRows)), static_cast<unsigned>(args.hv),
                  static_cast<unsigned>(pieces));
  launch_early(chunk_scan<T, K, kGroups>, grid, (kGroups + 1) * kWarpgroup, kBytes, device, stream, kOperation, args,
               pass);
}

template <class T, int K>
void launch(const ChunkArguments& args, Pass pass, const DeviceProperties& device, cudaStream_t stream) {
  // Two warpgroups share a block's tiles; with few heads, one each on more multiprocessors is faster.
  const std::int64_t pieces = args.segment_chunks > 0 ? args.segments : args.map.sequences;
  const std::int64_t blocks = static_cast<std::int64_t>(args.value_width / kRows) * args.hv * pieces;
  if (pass == Pass::kScan && args.value_width % (2 * kRows) == 0 && blocks > device.multiprocessors) {
    launch<T, K, 2>(args, pass, device, stream);
  } else {
    launch<T, K, 1>(args, pass, device, stream);
  }
}

void launch(const ChunkArguments& args, DType dtype, Pass pass, const DeviceProperties& device, cudaStream_t stream) {
  if (dtype == DType::kBF16) {
    args.key_width == 128 ? launch<__nv_bfloat16, 128>(args, pass, device, stream)
                          : launch<__nv_bfloat16, 64>(args, pass, device, stream);
  } else {
    args.key_width == 128 ? launch<__half, 128>(args, pass, device, stream)
                          : launch<__half, 64>(args, pass, device, stream);
  }
}

}  // namespace

void launch_chunk_carries(const ChunkArguments& args, DType dtype, const DeviceProperties& device,
                          cudaStream_t stream) {
  launch(args, dtype, Pass::kCarries, device, stream);
}

void launch_chunk_scan(const ChunkArguments& args, DType dtype, const DeviceProperties& device, cudaStream_t stream) {
  launch(args, dtype, Pass::kScan, device, stream);
}

}  // namespace thalweg::cu::sm90
