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
#include "cuda/device/chunk_place.h"
#include "cuda/device/fragments.h"
#include "cuda/device/launch_order.h"
#include "cuda/device/segments.h"
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

enum class Pass {
  kScan,     // outputs and final states, of whole sequences or of segments
  kCarries,  // B and M of segments
};

// What a block works on: rows of a head's state over a run of chunks.
struct Work {
  enum class Start { kZero, kIdentity, kPool, kGiven };

  bool valid;
  int row;     // batch row
  int begin;   // token in the row
  int length;  // tokens
  int chunks;
  int silent;  // chunks at the beginning whose output somebody else writes
  int head;
  int key_head;
  int first_row;  // of the state
  Start start;
  const float* given;          // [.,K], for kGiven
  bool no_values;              // v is all zeros
  std::int64_t slot;           // of the state pools, -1: none
  float* carry_to;             // [.,K], instead of the final state
  bool is_last;                // its last state is the sequence's
  int first_chunk;             // of the sequence
  std::int64_t pieces_before;  // checkpoints of the row's sequences before this one
  const std::byte* records;
};

// Skips and reports a sequence whose bounds or slot are out of range.
__device__ bool check_sequence(const ChunkArguments& args, int n, const SequenceMap::Sequence& sequence,
                               std::int64_t slot, bool report) {
  const bool has_state = args.initial_state.data != nullptr || args.final_state.data != nullptr;
  const bool slot_valid = !has_state || (slot >= -1 && slot < args.state_slots);
  bool bounds_valid = sequence.valid;
  if (args.map.cu_seqlens != nullptr) {
    if (n == 0 && args.map.cu_seqlens[0] != 0) bounds_valid = false;
    if (n == args.map.sequences - 1 && args.map.cu_seqlens[n + 1] != args.map.tokens) bounds_valid = false;
  }
  if (report && args.fault != nullptr && threadIdx.x == 0) {
    const int fault = (bounds_valid ? 0 : kFaultCuSeqlens) | (slot_valid ? 0 : kFaultStateIndices);
    if (fault != 0) atomicOr(args.fault, fault);
  }
  return sequence.valid && slot_valid;
}

__device__ Work find_work(const ChunkArguments& args, Pass pass, int rows_per_block) {
  Work work{};
  const int segment_tokens = args.segment_chunks * kChunk;
  const int piece = static_cast<int>(blockIdx.z);
  const int n = args.segment_chunks > 0 ? args.map.sequence_of(piece, segment_tokens) : piece;
  const int p = args.segment_chunks > 0 ? piece - args.map.first_piece(n, segment_tokens) : 0;
  const SequenceMap::Sequence sequence = args.map.sequence(n);
  const int segments = args.segment_chunks > 0 ? max(1, segment_count(args, sequence.length)) : 1;
  work.slot = args.state_indices != nullptr ? args.state_indices[n] : n;
  const bool report = pass == Pass::kScan && p == 0 && blockIdx.x == 0 && blockIdx.y == 0;
  work.valid = check_sequence(args, n, sequence, work.slot, report) && p >= 0 && p < segments;
  if (!work.valid) return work;
  work.head = static_cast<int>(blockIdx.y);
  work.key_head = args.tiled ? work.head % args.hk : work.head / (args.hv / args.hk);
  work.first_row = static_cast<int>(blockIdx.x) * rows_per_block;
  work.start = args.initial_state.data != nullptr && work.slot >= 0 ? Work::Start::kPool : Work::Start::kZero;
  work.is_last = p == segments - 1;
  int first = 0;  // chunk of the sequence
  int last = (sequence.length + kChunk - 1) / kChunk;
  if (args.segment_chunks > 0) {
    first = p * args.segment_chunks;
    last = min(last, first + args.segment_chunks);
  }
  if (pass == Pass::kCarries) {
    // M of a segment that does not forget; B of one that does not, or whose successor needs an exact start.
    const bool forgets = !work.is_last && chunks_remembered(args, n, p, work.head) > 0;
    const bool wanted = !forgets || (p + 2 < segments && chunks_remembered(args, n, p + 1, work.head) == 0);
    const bool is_m = work.first_row >= args.value_width;
    work.valid = !work.is_last && (is_m ? !forgets : wanted);
    if (!work.valid) return work;
    const Carry to = carry(args, n, p, work.head);
    if (is_m) work.first_row -= args.value_width;
    work.start = is_m ? Work::Start::kIdentity : Work::Start::kZero;
    work.no_values = is_m;
    work.carry_to = is_m ? to.m : to.b;
    work.silent = last - first;
  } else if (p > 0) {
    const int remembered = chunks_remembered(args, n, p - 1, work.head);
    first -= remembered;
    work.silent = remembered;
    work.start = remembered > 0 ? Work::Start::kZero : Work::Start::kGiven;
    work.given = carry(args, n, p, work.head).start;
  }
  work.row = sequence.row;
  work.begin = sequence.begin + first * kChunk;
  work.length = min(sequence.length, last * kChunk) - first * kChunk;
  work.chunks = last - first;
  work.first_chunk = first;
  if (args.checkpoints.data != nullptr) {
    work.pieces_before = chunks_before({args.map.cu_seqlens, n, args.map.tokens, args.checkpoint_chunks * kChunk}, n);
  }
  work.records =
      args.records + (static_cast<std::int64_t>(args.map.first_piece(n, kChunk) + first) * args.hv + work.head) *
                         static_cast<std::int64_t>(ChunkRecord::kPitch);
  return work;
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

// The rows of the state that a warp of a consumer holds: s[4j..4j+3] are columns 8j + 2 (lane % 4) and the next, of row
// lane / 4 and then of that + 8.
template <int kCount, class Access>
__device__ void for_each_pair(const TensorView<const void>& state, const Work& work, bool is_kv, int row, int lane,
                              Access access) {
  const std::int64_t* strides = state.strides;
  const std::int64_t v_step = is_kv ? 1 : strides[2];
  const std::int64_t k_step = is_kv ? strides[2] : 1;
  const std::int64_t first =
      work.slot * strides[0] + work.head * strides[1] + (row + lane / 4) * v_step + lane % 4 * 2 * k_step;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) access(i, first + i % 2 * 8 * v_step + i / 2 * 8 * k_step, k_step);
}

// Whether two neighbours along K can be moved at once.
__device__ inline bool pairs_aligned(const TensorView<const void>& state, bool is_kv, int bytes) {
  const std::int64_t odd = state.strides[0] | state.strides[1] | state.strides[2];
  return !is_kv && odd % 2 == 0 && reinterpret_cast<std::uintptr_t>(state.data) % (2 * bytes) == 0;
}

template <class S, class Pair, int kCount>
__device__ void load_state_of(const ChunkArguments& args, const Work& work, int row, int lane, float (&s)[kCount]) {
  const S* state = static_cast<const S*>(args.initial_state.data);
  if (pairs_aligned(args.initial_state, args.state_is_kv, sizeof(S))) {
    for_each_pair<kCount>(args.initial_state, work, false, row, lane, [&](int i, std::int64_t at, std::int64_t) {
      const Pair pair = *reinterpret_cast<const Pair*>(state + at);
      s[2 * i] = static_cast<float>(pair.x);
      s[2 * i + 1] = static_cast<float>(pair.y);
    });
  } else {
    for_each_pair<kCount>(args.initial_state, work, args.state_is_kv, row, lane,
                          [&](int i, std::int64_t at, std::int64_t step) {
                            s[2 * i] = static_cast<float>(state[at]);
                            s[2 * i + 1] = static_cast<float>(state[at + step]);
                          });
  }
}

// Pair i of a lane's values in a contiguous f32 matrix [.,K].
template <int K, class Float>
__device__ auto carried_pair(Float* matrix, int row, int lane, int i) {
  using Pair = std::conditional_t<std::is_const_v<Float>, const float2, float2>;
  return reinterpret_cast<Pair*>(matrix + (row + lane / 4 + i % 2 * 8) * K + i / 2 * 8 + lane % 4 * 2);
}

template <int kCount>
__device__ void load_state(const ChunkArguments& args, const Work& work, int row, int lane, float (&s)[kCount]) {
  if (work.start == Work::Start::kZero || work.start == Work::Start::kIdentity) {
    const float one = work.start == Work::Start::kIdentity ? 1.0F : 0.0F;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      s[i] = row + lane / 4 + i / 2 % 2 * 8 == i / 4 * 8 + lane % 4 * 2 + i % 2 ? one : 0.0F;
    }
  } else if (work.start == Work::Start::kGiven) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float2 pair = *carried_pair<2 * kCount>(work.given, row, lane, i);
      s[2 * i] = pair.x;
      s[2 * i + 1] = pair.y;
    }
  } else if (args.state_is_bf16) {
    load_state_of<__nv_bfloat16, __nv_bfloat162>(args, work, row, lane, s);
  } else {
    load_state_of<float, float2>(args, work, row, lane, s);
  }
}

template <class S, class Pair, int kCount>
__device__ void store_state_of(const TensorView<const void>& to, bool is_kv, const Work& work, int row, int lane,
                               const float (&s)[kCount]) {
  S* state = static_cast<S*>(const_cast<void*>(to.data));
  if (pairs_aligned(to, is_kv, sizeof(S))) {
    for_each_pair<kCount>(to, work, false, row, lane, [&](int i, std::int64_t at, std::int64_t) {
      Pair pair;
      pair.x = static_cast<S>(s[2 * i]);
      pair.y = static_cast<S>(s[2 * i + 1]);
      *reinterpret_cast<Pair*>(state + at) = pair;
    });
  } else {
    for_each_pair<kCount>(to, work, is_kv, row, lane, [&](int i, std::int64_t at, std::int64_t step) {
      state[at] = static_cast<S>(s[2 * i]);
      state[at + step] = static_cast<S>(s[2 * i + 1]);
    });
  }
}

template <int kCount>
__device__ void store_state_to(const TensorView<const void>& to, bool is_bf16, bool is_kv, const Work& work, int row,
                               int lane, const float (&s)[kCount]) {
  if (is_bf16) {
    store_state_of<__nv_bfloat16, __nv_bfloat162>(to, is_kv, work, row, lane, s);
  } else {
    store_state_of<float, float2>(to, is_kv, work, row, lane, s);
  }
}

template <int kCount>
__device__ void store_state(const ChunkArguments& args, const Work& work, int row, int lane, const float (&s)[kCount]) {
  if (work.carry_to != nullptr) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      *carried_pair<2 * kCount>(work.carry_to, row, lane, i) = {s[2 * i], s[2 * i + 1]};
    }
    return;
  }
  if (args.final_state.data == nullptr || work.slot < 0 || !work.is_last) return;
  const std::int64_t* strides = args.final_state.strides;
  store_state_to({args.final_state.data, {strides[0], strides[1], strides[2], 0}}, args.state_is_bf16, args.state_is_kv,
                 work, row, lane, s);
}

// The state before a chunk of the work, if the caller wants it and it is not another segment's.
template <int kCount>
__device__ void store_checkpoint(const ChunkArguments& args, const Work& work, int chunk, int row, int lane,
                                 const float (&s)[kCount]) {
  const int at = work.first_chunk + chunk;
  if (chunk < work.silent || at % args.checkpoint_chunks != 0) return;
  const std::int64_t piece = work.pieces_before + at / args.checkpoint_chunks;
  if (piece >= args.checkpoint_pieces) return;
  const std::int64_t* strides = args.checkpoints.strides;
  const std::int64_t before = work.row * strides[0] + piece * strides[1];
  const int width = args.checkpoints_are_bf16 ? 2 : 4;
  store_state_to(
      {static_cast<const std::byte*>(args.checkpoints.data) + before * width, {0, strides[2], strides[3], 0}},
      args.checkpoints_are_bf16, args.state_is_kv, work, row, lane, s);
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
