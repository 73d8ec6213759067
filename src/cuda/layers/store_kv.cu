// store_kv. A block has a token: its threads take four neighbors of a row of k or v each, or, for a cache of Q8_0, its
// warps a block of 32 values each.

#include <cstdint>
#include <type_traits>

#include "cuda/common/packed.h"
#include "cuda/common/pdl.h"
#include "cuda/common/warp.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/layers/cache_places.h"
#include "cuda/layers/packed_cache.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 128;

struct StoreKv {
  Elements k, v;  // [T,HKV,D]
  CacheView k_cache, v_cache;
  CacheTable table;
  int heads = 0;
  int width = 0;
};

template <class From, class To>
__device__ inline void store_packed(To* to, const Packed<From, 4>& from) {
  if constexpr (std::is_same_v<From, To>) {
    *reinterpret_cast<typename Packed<To, 4>::Bits*>(to) = from.bits;
  } else {
    float values[4];
    from.unpack(values);
    store_four(to, {values[0], values[1], values[2], values[3]});
  }
}
template <class From, class To>
__device__ inline void store_packed(To* to, const Packed<From, 1>& from) {
  if constexpr (std::is_same_v<From, To>) {
    *to = from.bits;
  } else {
    *to = from_f32<To>(to_f32(from.bits));
  }
}

// Where a token's rows go in the caches; k is negative if nowhere.
struct StoredAt {
  std::int64_t k = -1;
  std::int64_t v = -1;
};
__device__ inline StoredAt stored_at(const StoreKv& p, std::int64_t token) {
  const CachedSequence sequence = find_cached(p.table, sequence_of_token(p.table, token));
  const std::int64_t i = token - sequence.begin;
  if (sequence.absent || !sequence.valid || i < 0 || i >= sequence.fresh) return {};
  const int position = sequence.length - sequence.fresh + static_cast<int>(i);
  return {cache_offset(p.table, sequence, p.k_cache, position), cache_offset(p.table, sequence, p.v_cache, position)};
}

template <class From, class To, int kVec>
__global__ void __launch_bounds__(kThreads) store_kernel(const __grid_constant__ StoreKv p) {
  pdl_trigger_and_wait();
  const std::int64_t token = blockIdx.x;
  const auto [k_offset, v_offset] = stored_at(p, token);
  if (k_offset < 0) return;
  const int vectors = p.width / kVec;
  for (int at = static_cast<int>(threadIdx.x); at < 2 * p.heads * vectors; at += kThreads) {
    const int row = at / vectors;
    const int column = (at - row * vectors) * kVec;
    const bool value = row >= p.heads;
    const int head = value ? row - p.heads : row;
    const Elements& from = value ? p.v : p.k;
    const CacheView& cache = value ? p.v_cache : p.k_cache;
    const auto raw = Packed<From, kVec>::read(static_cast<const From*>(from.data) + from.offset(token, head) + column);
    store_packed<From, To>(
        static_cast<To*>(cache.data) + (value ? v_offset : k_offset) + head * cache.strides[2] + column, raw);
  }
}

template <class From>
__global__ void __launch_bounds__(kThreads) store_packed_kernel(const __grid_constant__ StoreKv p) {
  pdl_trigger_and_wait();
  const std::int64_t token = blockIdx.x;
  const auto [k_offset, v_offset] = stored_at(p, token);
  if (k_offset < 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int blocks = p.width / 32;
  for (int at = static_cast<int>(threadIdx.x) / kWarpSize; at < 2 * p.heads * blocks; at += kThreads / kWarpSize) {
    const int row = at / blocks;
    const bool value = row >= p.heads;
    const int head = value ? row - p.heads : row;
    const int column = (at - row * blocks) * 32;
    const Elements& from = value ? p.v : p.k;
    const CacheView& cache = value ? p.v_cache : p.k_cache;
    const float x = to_f32(static_cast<const From*>(from.data)[from.offset(token, head) + column + lane]);
    float largest = fabsf(x);
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, distance));
    }
    F16 scale = from_f32<F16>(fminf(__fdiv_rn(largest, 127.0F), 65504.0F));
    if (scale.bits == 0 && largest > 0.0F) scale.bits = 1;
    const float inverse = scale.bits == 0 ? 0.0F : __frcp_rn(to_f32(scale));
    const float code = fminf(fmaxf(rintf(__fmul_rn(x, inverse)), -127.0F), 127.0F);
    std::uint8_t* const block =
        const_cast<std::uint8_t*>(packed_row(cache, (value ? v_offset : k_offset) + head * cache.strides[2] + column));
    block[2 + lane] = static_cast<std::uint8_t>(static_cast<std::int8_t>(code));
    if (lane == 0) *reinterpret_cast<std::uint16_t*>(block) = scale.bits;
  }
}

using StoreKernel = void (*)(StoreKv);

bool by_fours(const StoreKvArgs& args) {
  return args.k.dim(2) % 4 == 0 && elements(args.k).fours && elements(args.v).fours && elements(args.k_cache).fours &&
         elements(args.v_cache).fours;
}

StoreKernel kernel_of(const StoreKvArgs& args) {
  StoreKernel kernel = nullptr;
  with_type(args.k.dtype, [&]<class From>(From) {
    if (args.k_cache.dtype == DType::kQ8_0) {
      kernel = store_packed_kernel<From>;
      return;
    }
    with_type(args.k_cache.dtype,
              [&]<class To>(To) { kernel = by_fours(args) ? store_kernel<From, To, 4> : store_kernel<From, To, 1>; });
  });
  return kernel;
}

std::string supports(const StoreKvArgs& args, const Stream&) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (args.k.dim(0) > kMost || args.k.dim(1) * args.k.dim(2) > kMost / 2)
    return "needs fewer than 2^30 elements a token";
  return positions_fit(args) ? "" : "needs fewer than 2^30 positions";
}

void run(const StoreKvArgs& args, Workspace, const Stream& stream) {
  if (args.k.size() == 0 || args.k_cache.size() == 0) return;
  StoreKv p;
  p.k = elements(args.k);
  p.v = elements(args.v);
  p.k_cache = cache_view(args.k_cache);
  p.v_cache = cache_view(args.v_cache);
  p.table = cache_table(args, args.k.dim(0));
  p.heads = static_cast<int>(args.k.dim(1));
  p.width = static_cast<int>(args.k.dim(2));
  const CurrentDevice current(stream, args.kName);
  pdl_launch(kernel_of(args), dim3(static_cast<unsigned>(args.k.dim(0))), dim3(kThreads), 0,
             properties(stream.device.index), native(stream), args.kName, p);
}

constexpr Kernel<StoreKvArgs> kStore[] = {{"rows", supports, no_workspace<StoreKvArgs>, run}};

}  // namespace

KernelList<StoreKvArgs> store_kv_kernels() { return kStore; }

}  // namespace thalweg::cu
