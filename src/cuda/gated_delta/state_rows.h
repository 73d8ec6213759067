#pragma once

// Loads and stores of the 16 rows of a state that a warp of the chunked gated delta rule's second pass holds, laid out
// as accumulators of the matrix instructions.

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/gated_delta/chunk_work.h"

namespace thalweg::cu {

// Calls access(i, offset, step) for pair i of a lane, s[2i] and s[2i+1], `step` elements apart. s[4j..4j+3] are columns
// 8j + 2 (lane % 4) and the next, of row lane / 4 and then of that + 8.
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

// Whether two neighbors along K can be accessed at once.
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
  } else if (work.start == Work::Start::kCarried) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float2 pair = *carried_pair<2 * kCount>(work.carried, row, lane, i);
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

// Stores the state before a chunk, if it is a checkpoint and no other segment stores it.
template <int kCount>
__device__ void store_checkpoint(const ChunkArguments& args, const Work& work, int chunk, int row, int lane,
                                 const float (&s)[kCount]) {
  const int at = work.first_chunk + chunk;
  if (chunk < work.warmup || at % args.checkpoint_chunks != 0) return;
  const std::int64_t index = work.checkpoints_before + at / args.checkpoint_chunks;
  if (index >= args.checkpoint_count) return;
  const std::int64_t* strides = args.checkpoints.strides;
  const std::int64_t before = work.row * strides[0] + index * strides[1];
  const int width = args.checkpoints_are_bf16 ? 2 : 4;
  // The address includes row and index: the stride of the slot is 0.
  store_state_to(
      {static_cast<const std::byte*>(args.checkpoints.data) + before * width, {0, strides[2], strides[3], 0}},
      args.checkpoints_are_bf16, args.state_is_kv, work, row, lane, s);
}

}  // namespace thalweg::cu
