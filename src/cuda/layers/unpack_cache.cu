// The contexts of a batch from Q8_0 to f16. A block has kPositions positions of a key head, keys and values: a thread
// takes two blocks of 32 values at a time.

#include "cuda/layers/unpack_cache.h"

#include "cuda/common/pdl.h"
#include "cuda/launch.h"
#include "cuda/layers/packed_cache.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 128;
constexpr int kPositions = 64;

struct Unpack {
  CacheView k, v;
  CacheTable table;
  __half* to_k = nullptr;
  __half* to_v = nullptr;
  std::int32_t* slots = nullptr;
  int heads = 0;  // HKV
  int width = 0;  // D
};

__global__ void __launch_bounds__(kThreads) unpack_kernel(const __grid_constant__ Unpack p) {
  pdl_trigger_and_wait();
  const int head = static_cast<int>(blockIdx.y);
  const std::int64_t n = blockIdx.z;
  const int first = static_cast<int>(blockIdx.x) * kPositions;
  const CachedSequence sequence = find_cached(p.table, n);
  const bool present = sequence.valid && !sequence.absent;
  if (first == 0 && head == 0 && threadIdx.x == 0) {
    const auto none = static_cast<std::int32_t>(p.table.sequences);  // a slot that is not there: the values are bad
    p.slots[n] = sequence.absent ? -1 : present ? static_cast<std::int32_t>(n) : none;
  }
  const int positions = present ? min(kPositions, sequence.length - first) : 0;
  const int pairs = p.width / kPairValues;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * positions * pairs; i += kThreads) {
    const bool value = i >= positions * pairs;
    const int at = value ? i - positions * pairs : i;
    const int position = first + at / pairs;
    const int pair = at % pairs;
    const CacheView& cache = value ? p.v : p.k;
    const std::int64_t offset = cache_offset(p.table, sequence, cache, position);
    std::uint32_t words[kPairWords];
    read_pair(words, cache, offset < 0 ? offset : offset + head * cache.strides[2], pair);
    __half* to = (value ? p.to_v : p.to_k) + ((n * p.table.capacity + position) * p.heads + head) * p.width;
    unpack_pair(words, [&](int vector, uint4 values) {
      *reinterpret_cast<uint4*>(to + pair * kPairValues + vector * 8) = values;
    });
  }
}

}  // namespace

std::int64_t unpacked_values(const AttentionArgs& args) {
  return 2 * args.lengths.dim(0) * capacity_of(args) * args.k_cache.dim(2) * args.k_cache.dim(3);
}

UnpackedCache::UnpackedCache(const AttentionArgs& args, Arena& arena)
    : k(arena.take<std::uint16_t>(unpacked_values(args) / 2)),
      v(arena.take<std::uint16_t>(unpacked_values(args) / 2)),
      slots(arena.take<std::int32_t>(args.lengths.dim(0))) {}

void enqueue_unpacked(const UnpackedCache& to, AttentionCall& p, const Stream& stream) {
  Unpack unpack;
  unpack.k = p.k;
  unpack.v = p.v;
  unpack.table = p.table;
  unpack.to_k = static_cast<__half*>(to.k);
  unpack.to_v = static_cast<__half*>(to.v);
  unpack.slots = to.slots;
  unpack.heads = p.heads / p.group;
  unpack.width = p.width;
  const dim3 grid(static_cast<unsigned>((p.table.capacity + kPositions - 1) / kPositions),
                  static_cast<unsigned>(unpack.heads), static_cast<unsigned>(p.table.sequences));
  pdl_launch(unpack_kernel, grid, dim3(kThreads), 0, properties(stream.device.index), native(stream),
             AttentionArgs::kName, unpack);
  const std::int64_t row = std::int64_t{unpack.heads} * p.width;
  p.k = {to.k, {p.table.capacity * row, row, p.width}};
  p.v = {to.v, {p.table.capacity * row, row, p.width}};
  p.table.slots = to.slots;
  p.table.pages = nullptr;
  p.table.num_slots = p.table.sequences;
}

}  // namespace thalweg::cu
