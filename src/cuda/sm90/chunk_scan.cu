// Second pass of the chunked gated delta rule on Hopper: walks through a sequence with the state in registers.
//
// A block owns 64 kGroups rows of one head's state S [V,K], 64 per consumer warpgroup, and goes through the chunks of
// one sequence. With everything transposed, each product's result is the next one's left operand and never leaves the
// registers (accumulators and operands have the same layout but for the rounding to 16 bits):
//
//   X^T = S k^T    Y^T = v^T - X^T x    V'^T = Y^T T^T    O^T = (S q^T) o + V'^T P^T    S = S decay + (V'^T d) k
//
// The two warpgroups never wait for each other, so that one's products fill the other's arithmetic. A third warpgroup
// copies the chunks' tiles into a ring of shared memory ahead of them. The output of a chunk is written while the first
// product of the next one runs, through the place of the chunk's v, which nobody needs any more.

#include "cuda/chunk_kernels.h"
#include "cuda/device/async_copy.h"
#include "cuda/device/barrier.h"
#include "cuda/device/fragments.h"
#include "cuda/device/wgmma.h"
#include "cuda/launch.h"

namespace thalweg::cu::sm90 {
namespace {

constexpr int kWarpgroup = 128;
constexpr int kRows = 64;          // of the state, per consumer warpgroup
constexpr int kTile = kChunk * 128;  // bytes of a tile of 64 tokens x 64 columns

// A stage of the ring: k, q, v, record.
template <int K, int kGroups>
struct Ring {
  static constexpr int kKeys = K / kTileColumns * kTile;
  static constexpr int kQueries = kKeys;
  static constexpr int kValues = 2 * kKeys;
  static constexpr int kRecord = kValues + kGroups * kTile;
  static constexpr int kStageBytes = kRecord + ChunkRecord::kBytes;
  static constexpr int kStages = 3;
  static constexpr int kBytes = kStages * kStageBytes;
  static constexpr int kSharedBytes = kBytes + 1024;  // room to align
};

template <int kStages>
struct Barriers {
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
};

__device__ inline void store_blocks_transposed(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                               std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// What a block works on.
struct Work {
  SequenceMap::Sequence sequence;
  int head;
  int key_head;
  int first_row;  // of the state
  int chunks;
  std::int64_t slot;  // of the state pools, -1: none
  const std::byte* records;
};

__device__ Work find_work(const ChunkArguments& args, int rows_per_block) {
  Work work;
  const int n = static_cast<int>(blockIdx.z);
  work.sequence = args.map.sequence(n);
  work.head = static_cast<int>(blockIdx.y);
  work.key_head = args.tiled ? work.head % args.hk : work.head / (args.hv / args.hk);
  work.first_row = static_cast<int>(blockIdx.x) * rows_per_block;
  work.chunks = (work.sequence.length + kChunk - 1) / kChunk;
  work.slot = args.state_indices != nullptr ? args.state_indices[n] : n;
  const bool slot_valid = work.slot >= -1 && work.slot < args.state_slots;
  const bool has_state = args.initial_state.data != nullptr || args.final_state.data != nullptr;
  bool bounds_valid = work.sequence.valid;
  if (args.map.cu_seqlens != nullptr) {
    if (n == 0 && args.map.cu_seqlens[0] != 0) bounds_valid = false;
    if (n == args.map.sequences - 1 && args.map.cu_seqlens[n + 1] != args.map.tokens) bounds_valid = false;
  }
  if (args.fault != nullptr && threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
    const int fault = (bounds_valid ? 0 : kFaultCuSeqlens) | (slot_valid || !has_state ? 0 : kFaultStateIndices);
    if (fault != 0) atomicOr(args.fault, fault);
  }
  if (has_state && !slot_valid) work.sequence.valid = false;
  work.records = args.records + (static_cast<std::int64_t>(args.map.first_slot(n)) * args.hv + work.head) *
                                    static_cast<std::int64_t>(ChunkRecord::kBytes);
  return work;
}

template <class T, int K, int kGroups>
__device__ void produce(const ChunkArguments& args, const Work& work, std::uint32_t ring, std::uint32_t full,
                        std::uint32_t empty) {
  using R = Ring<K, kGroups>;
  constexpr int kKeyPieces = K / 8;
  constexpr int kKeyRows = kWarpgroup / kKeyPieces;  // a multiple of 8: a thread's swizzle is always the same
  constexpr int kValuePieces = kGroups * 8;
  constexpr int kValueRows = kWarpgroup / kValuePieces;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const auto source = [&](const TensorView<const void>& tensor, int token, int head, int column) {
    return static_cast<const T*>(tensor.data) + work.sequence.row * tensor.strides[0] + token * tensor.strides[1] +
           head * tensor.strides[2] + column;
  };
  const int key_row = thread / kKeyPieces;
  const int key_piece = thread % kKeyPieces;
  const std::uint32_t key_place = static_cast<std::uint32_t>(key_piece / 8 * kTile) + swizzled(key_row, key_piece % 8);
  const int value_row = thread / kValuePieces;
  const int value_piece = thread % kValuePieces;
  const std::uint32_t value_place = static_cast<std::uint32_t>(R::kValues + value_piece / 8 * kTile) +
                                    swizzled(value_row, value_piece % 8);
  for (int chunk = 0; chunk < work.chunks; ++chunk) {
    const int stage = chunk % R::kStages;
    const std::uint32_t place = ring + static_cast<std::uint32_t>(stage * R::kStageBytes);
    barrier_wait(empty + 8 * stage, (chunk / R::kStages + 1) % 2);
    if (thread == 0) {
      barrier_arrive_expecting(full + 8 * stage, ChunkRecord::kBytes);
      bulk_copy(place + R::kRecord, work.records + static_cast<std::int64_t>(chunk) * args.hv * ChunkRecord::kBytes,
                ChunkRecord::kBytes, full + 8 * stage);
    }
    const int begin = work.sequence.begin + chunk * kChunk;
    const int length = min(kChunk, work.sequence.length - chunk * kChunk);
    const T* k = source(args.k, begin, work.key_head, key_piece * 8);
    const T* q = source(args.q, begin, work.key_head, key_piece * 8);
    const T* v = source(args.v, begin, work.head, work.first_row + value_piece * 8);
#pragma unroll
    for (int i = 0; i < kChunk / kKeyRows; ++i) {
      const int row = key_row + i * kKeyRows;
      const bool valid = row < length;
      const std::int64_t token = valid ? row : 0;
      const std::uint32_t to = place + key_place + static_cast<std::uint32_t>(i * kKeyRows * 128);
      copy_16_bytes(to, k + token * args.k.strides[1], valid);
      copy_16_bytes(to + R::kQueries, q + token * args.q.strides[1], valid);
    }
#pragma unroll
    for (int i = 0; i < kChunk / kValueRows; ++i) {
      const int row = value_row + i * kValueRows;
      const bool valid = row < length;
      const std::int64_t token = valid ? row : 0;
      copy_16_bytes(place + value_place + static_cast<std::uint32_t>(i * kValueRows * 128),
                    v + token * args.v.strides[1], valid);
    }
    commit_copies();
    // The chunk before is announced now: its copies had the time of this one's issue to arrive.
    if (chunk > 0) {
      wait_for_copies<1>();
      fence_for_async_reads();
      barrier_arrive(full + 8 * ((chunk - 1) % R::kStages));
    }
  }
  if (work.chunks > 0) {
    wait_for_copies<0>();
    fence_for_async_reads();
    barrier_arrive(full + 8 * ((work.chunks - 1) % R::kStages));
  }
}

// The rows of the state that a warp of a consumer holds: s[4j..4j+3] are columns 8j + 2 (lane % 4) and the next, of row
// lane / 4 and then of that + 8.
template <int kCount>
__device__ void load_state(const ChunkArguments& args, const Work& work, int row, int lane, float (&s)[kCount]) {
  if (args.initial_state.data == nullptr || work.slot < 0) {
#pragma unroll
    for (float& value : s) value = 0.0F;
    return;
  }
  const std::int64_t* strides = args.initial_state.strides;
  const std::int64_t base = work.slot * strides[0] + work.head * strides[1];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int v = row + lane / 4 + i / 2 % 2 * 8;
    const int k = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const std::int64_t at = base + (args.state_is_kv ? k * strides[2] + v : v * strides[2] + k);
    s[i] = args.state_is_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(args.initial_state.data)[at])
                              : static_cast<const float*>(args.initial_state.data)[at];
  }
}

template <int kCount>
__device__ void store_state(const ChunkArguments& args, const Work& work, int row, int lane, const float (&s)[kCount]) {
  if (args.final_state.data == nullptr || work.slot < 0) return;
  const std::int64_t* strides = args.final_state.strides;
  const std::int64_t base = work.slot * strides[0] + work.head * strides[1];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int v = row + lane / 4 + i / 2 % 2 * 8;
    const int k = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const std::int64_t at = base + (args.state_is_kv ? k * strides[2] + v : v * strides[2] + k);
    if (args.state_is_bf16) {
      static_cast<__nv_bfloat16*>(args.final_state.data)[at] = __float2bfloat16_rn(s[i]);
    } else {
      static_cast<float*>(args.final_state.data)[at] = s[i];
    }
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
                        std::uint32_t full, std::uint32_t empty) {
  using R = Ring<K, kGroups>;
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int first_row = work.first_row + group * kRows;
  // Where this lane reads v and writes o, eight tokens by eight rows a block: see store_output.
  const int block_token = lane / 16 * 8 + lane % 8;
  const std::uint32_t block_place =
      static_cast<std::uint32_t>(R::kValues + group * kTile) + swizzled(block_token, 2 * warp + lane / 8 % 2);

  float s[K / 2];
  load_state(args, work, first_row + 16 * warp, lane, s);
  std::uint32_t s16[K / 16][4];
  to_operand<T, K / 16>(s, s16);
  std::uint32_t o16[4][4];

  const auto store_output = [&](int chunk) {
    const int stage = chunk % R::kStages;
    const std::uint32_t place = ring + static_cast<std::uint32_t>(stage * R::kStageBytes);
    if (!args.o_is_f32) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        store_blocks_transposed(place + block_place + static_cast<std::uint32_t>(i * 16 * 128), o16[i][0], o16[i][1],
                                o16[i][2], o16[i][3]);
      }
      named_barrier(1 + group, kWarpgroup);
      const int begin = work.sequence.begin + chunk * kChunk;
      const int length = min(kChunk, work.sequence.length - chunk * kChunk);
      const std::byte* tile = ring_bytes + stage * R::kStageBytes + R::kValues + group * kTile;
      T* o = static_cast<T*>(args.o.data) + work.sequence.row * args.o.strides[0] + work.head * args.o.strides[2] +
             first_row + thread % 8 * 8;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = thread / 8 + i * 16;
        if (token >= length) continue;
        *reinterpret_cast<uint4*>(o + (begin + token) * args.o.strides[1]) =
            *reinterpret_cast<const uint4*>(tile + swizzled(token, thread % 8));
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + 8 * stage);
  };

  for (int chunk = 0; chunk < work.chunks; ++chunk) {
    const int stage = chunk % R::kStages;
    const std::uint32_t place = ring + static_cast<std::uint32_t>(stage * R::kStageBytes);
    const std::byte* bytes = ring_bytes + stage * R::kStageBytes;
    const std::uint32_t record = place + R::kRecord;
    barrier_wait(full + 8 * stage, chunk / R::kStages % 2);

    float x[32];
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < K / 16; ++step) {
      wgmma<T, false>(x, s16[step],
                      describe_rows(place + static_cast<std::uint32_t>(step / 4 * kTile + step % 4 * 32)), step > 0);
    }
    wgmma_commit();
    if (chunk > 0) store_output(chunk - 1);
    float o[32];
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < K / 16; ++step) {
      wgmma<T, false>(
          o, s16[step],
          describe_rows(place + static_cast<std::uint32_t>(R::kQueries + step / 4 * kTile + step % 4 * 32)), step > 0);
    }
    wgmma_commit();

    // Y^T = v^T - X^T x
    std::uint32_t y[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_blocks_transposed(y[i], place + block_place + static_cast<std::uint32_t>(i * 16 * 128));
    }
    const auto* x_scales = reinterpret_cast<const float*>(bytes + R::kRecord + ChunkRecord::kX) + lane % 4 * 2;
    wgmma_wait<1>();
    pin(x);
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      const float2 scale = *reinterpret_cast<const float2*>(x_scales + 8 * block);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t& packed = y[block / 2][block % 2 * 2 + half];
        const float2 v = unpack<T>(packed);
        packed = pack<T>(v.x - x[4 * block + 2 * half] * scale.x, v.y - x[4 * block + 2 * half + 1] * scale.y);
      }
    }
    // V'^T = Y^T T^T
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma<T, false>(x, y[step], describe_rows(record + static_cast<std::uint32_t>(ChunkRecord::kT + step * 32)),
                      step > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(x);
    pin(o);
    std::uint32_t decayed[4][4];
    std::uint32_t plain[4][4];
    const auto* d_scales = reinterpret_cast<const float*>(bytes + R::kRecord + ChunkRecord::kD) + lane % 4 * 2;
    const auto* o_scales = reinterpret_cast<const float*>(bytes + R::kRecord + ChunkRecord::kO) + lane % 4 * 2;
    const float decay = *reinterpret_cast<const float*>(bytes + R::kRecord + ChunkRecord::kDecay);
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      const float2 d = *reinterpret_cast<const float2*>(d_scales + 8 * block);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = x[4 * block + 2 * half];
        const float high = x[4 * block + 2 * half + 1];
        plain[block / 2][block % 2 * 2 + half] = pack<T>(low, high);
        decayed[block / 2][block % 2 * 2 + half] = pack<T>(low * d.x, high * d.y);
      }
    }
#pragma unroll
    for (float& value : s) value *= decay;
    pin(s);
    // S += (V'^T d) k
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma<T, true>(s, decayed[step], describe_columns(place + static_cast<std::uint32_t>(step * 2048)), 1);
    }
    wgmma_commit();
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      const float2 scale = *reinterpret_cast<const float2*>(o_scales + 8 * block);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        o[4 * block + 2 * half] *= scale.x;
        o[4 * block + 2 * half + 1] *= scale.y;
      }
    }
    pin(o);
    // O^T = (S q^T) o + V'^T P^T
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma<T, false>(o, plain[step], describe_rows(record + static_cast<std::uint32_t>(ChunkRecord::kP + step * 32)),
                      1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    pin(s);
    to_operand<T, K / 16>(s, s16);
    wgmma_wait<0>();
    pin(o);
    if (args.o_is_f32) {
      const int begin = work.sequence.begin + chunk * kChunk;
      const int length = min(kChunk, work.sequence.length - chunk * kChunk);
      float* to = static_cast<float*>(args.o.data) + work.sequence.row * args.o.strides[0] +
                  work.head * args.o.strides[2] + first_row + 16 * warp + lane / 4;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (token < length) to[(begin + token) * args.o.strides[1] + i / 2 % 2 * 8] = o[i];
      }
    } else {
      to_operand<T, 4>(o, o16);
    }
  }
  if (work.chunks > 0) store_output(work.chunks - 1);
  store_state(args, work, first_row + 16 * warp, lane, s);
}

template <class T, int K, int kGroups>
__global__ void __launch_bounds__((kGroups + 1) * kWarpgroup, 1)
    chunk_scan(const __grid_constant__ ChunkArguments args) {
  using R = Ring<K, kGroups>;
  extern __shared__ __align__(1024) std::byte shared[];
  __shared__ Barriers<R::kStages> barriers;
  const Work work = find_work(args, kGroups * kRows);
  if (!work.sequence.valid) return;
  const std::uint32_t full = shared_address(barriers.full);
  const std::uint32_t empty = shared_address(barriers.empty);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < R::kStages; ++stage) {
      barrier_init(full + 8 * stage, kWarpgroup + 1);
      barrier_init(empty + 8 * stage, kGroups * 4);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const std::uint32_t offset = (1024 - shared_address(shared) % 1024) % 1024;
  const std::uint32_t ring = shared_address(shared) + offset;
  if (threadIdx.x < kWarpgroup) {
    if constexpr (kGroups == 2) give_up_registers<40>();
    produce<T, K, kGroups>(args, work, ring, full, empty);
  } else {
    if constexpr (kGroups == 2) take_registers<232>();
    consume<T, K, kGroups>(args, work, ring, shared + offset, full, empty);
  }
}

template <class T, int K, int kGroups>
void launch(const ChunkArguments& args, cudaStream_t stream) {
  static constexpr std::string_view kOperation = "chunk_gated_delta_rule";
  constexpr int kBytes = Ring<K, kGroups>::kSharedBytes;
  allow_shared_memory(reinterpret_cast<const void*>(chunk_scan<T, K, kGroups>), kBytes, kOperation);
  const dim3 grid(static_cast<unsigned>(args.value_width / (kGroups * kRows)), static_cast<unsigned>(args.hv),
                  static_cast<unsigned>(args.map.sequences));
  chunk_scan<T, K, kGroups><<<grid, (kGroups + 1) * kWarpgroup, kBytes, stream>>>(args);
  check(cudaGetLastError(), kOperation);
}

template <class T, int K>
void launch(const ChunkArguments& args, int multiprocessors, cudaStream_t stream) {
  // Two warpgroups share a block's tiles; with few heads, one each on more multiprocessors is faster.
  const std::int64_t blocks = static_cast<std::int64_t>(args.value_width / kRows) * args.hv * args.map.sequences;
  if (args.value_width % (2 * kRows) == 0 && blocks > multiprocessors) {
    launch<T, K, 2>(args, stream);
  } else {
    launch<T, K, 1>(args, stream);
  }
}

}  // namespace

void launch_chunk_scan(const ChunkArguments& args, DType dtype, int multiprocessors, cudaStream_t stream) {
  const bool bf16 = dtype == DType::kBF16;
  if (args.key_width == 128) {
    bf16 ? launch<__nv_bfloat16, 128>(args, multiprocessors, stream) : launch<__half, 128>(args, multiprocessors, stream);
  } else {
    bf16 ? launch<__nv_bfloat16, 64>(args, multiprocessors, stream) : launch<__half, 64>(args, multiprocessors, stream);
  }
}

}  // namespace thalweg::cu::sm90
