// Prefill on Hopper: flash attention over ragged sequences by wgmma, keys and values straight from the cache.
//
// Roles: a block has up to 128 rows, tokens of one sequence times the query heads of a key head. Warpgroup 0 is the
//   producer, which copies keys and values; the others are consumers, 64 rows each. Blocks of later tokens start first.
//   Where there are too few of them the context is split over blocks too, whose results a second kernel merges.
// Shared memory: the queries, and a ring of kSlots tiles of 64 keys or values, all swizzled.
// Pipeline: cp.async by the producer, since a page may end anywhere; full and empty mbarriers per slot. A consumer
//   starts the next products with keys, then those of the weights before with their values: its softmax runs during the
//   latter, and during the products of the other consumer.

#include "cuda/common/mbarrier.h"
#include "cuda/common/pdl.h"
#include "cuda/common/wgmma.h"
#include "cuda/launch.h"
#include "cuda/layers/attention.h"

namespace thalweg::cu::sm90 {
namespace {

constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kRows = 64 * kConsumers;
static_assert(kRows == kPrefillRows);
constexpr int kKeys = 64;
constexpr int kSlots = 4;
constexpr int kTileBytes = 8192;  // 64 rows of 64 columns
constexpr int kConsumerBarrier = 1;
constexpr int kTurnBarriers = 2;  // one for each consumer

template <int D>
constexpr int kSlotBytes = kKeys* D * 2;
template <int D>
constexpr int kSharedBytes = kRows* D * 2 + kSlots* kSlotBytes<D> + 1024;

struct Ring {
  std::uint32_t address;
  MbarrierArray full;
  MbarrierArray empty;

  // Tiles are numbered in the order in which consumers need them: K0 K1 V0 K2 V1 ... V(n-1).
  __device__ void wait_full(int tile) const { full[tile % kSlots].wait(static_cast<std::uint32_t>(tile / kSlots % 2)); }
  __device__ void wait_empty(int tile) const {
    empty[tile % kSlots].wait(static_cast<std::uint32_t>(tile / kSlots % 2) ^ 1U);
  }
};

// The producer's copies of one of the caches. Without pages a thread's rows of a tile are a constant distance apart,
// and a copy costs little more than its instruction.
template <int D>
class TileCopies {
 public:
  __device__ TileCopies(const AttentionCall& p, const AttentionTile& tile, const CacheView& cache, int key_head,
                        int thread)
      : p_(p), tile_(tile), cache_(cache), key_head_(key_head), thread_(thread) {
    const int row = thread / kVectors;
    const int vector = thread % kVectors;
    from_ = static_cast<const std::uint16_t*>(cache.data) + key_head * cache.strides[2] +
            tile.sequence.slot * cache.strides[0] + row * cache.strides[1] + vector * 8;
    const std::uint32_t tile_at = static_cast<std::uint32_t>(vector / 8 * kTileBytes);
    even_ = tile_at + swizzled(row, vector % 8);
    odd_ = tile_at + swizzled(row + kStep, vector % 8);
  }

  // Starts to copy positions [first, first + kKeys); zeros from the last visible one on.
  __device__ __forceinline__ void copy(int first, std::uint32_t to) const {
    if (p_.table.pages != nullptr || first + kKeys > tile_.visible) {
      return copy_positions<D, kKeys, kWarpgroup>(p_, tile_.sequence, cache_, key_head_, first, tile_.visible, to,
                                                  thread_);
    }
    const std::uint16_t* from = from_ + first * cache_.strides[1];
    const std::int64_t step = kStep * cache_.strides[1];
#pragma unroll
    for (int n = 0; n < kKeys / kStep; n += 2) {
      copy_16_bytes(to + even_ + static_cast<std::uint32_t>(n * kStep * 128), from);
      copy_16_bytes(to + odd_ + static_cast<std::uint32_t>(n * kStep * 128), from + step);
      from += 2 * step;
    }
  }

 private:
  static constexpr int kVectors = D / 8;
  static constexpr int kStep = kWarpgroup / kVectors;  // rows that the warpgroup copies at a time
  static_assert(2 * kStep % 8 == 0);                   // two of them have the swizzle of the next two

  const AttentionCall& p_;
  const AttentionTile& tile_;
  const CacheView& cache_;
  int key_head_;
  int thread_;
  const std::uint16_t* from_;
  std::uint32_t even_, odd_;
};

// The tiles of keys of a block.
struct KeyTiles {
  int first;
  int count;
};

// The producer warpgroup.
template <int D>
__device__ void produce(const AttentionCall& p, const AttentionTile& tile, int key_head, KeyTiles of, const Ring& ring,
                        int thread) {
  const auto publish = [&](int number) {
    fence_proxy_async();
    ring.full[number % kSlots].arrive();
  };
  const int tiles = 2 * of.count;
  const TileCopies<D> keys(p, tile, p.k, key_head, thread);
  const TileCopies<D> values(p, tile, p.v, key_head, thread);
#pragma unroll 1
  for (int number = 0; number < tiles; ++number) {
    const bool value = number == tiles - 1 || (number > 0 && number % 2 == 0);
    const int step = number == tiles - 1 ? of.count - 1 : value ? number / 2 - 1 : (number + 1) / 2;
    ring.wait_empty(number);
    (value ? values : keys)
        .copy((of.first + step) * kKeys, ring.address + static_cast<std::uint32_t>(number % kSlots * kSlotBytes<D>));
    commit_copies();
    if (number == 0) continue;
    wait_for_copies<1>();
    publish(number - 1);
  }
  wait_for_copies<0>();
  publish(tiles - 1);
}

// Starts products[64,64] = q k^T of a consumer's rows.
template <class T, int D>
__device__ __forceinline__ void start_keys(float (&products)[32], std::uint32_t queries, std::uint32_t keys) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    const std::uint32_t within = static_cast<std::uint32_t>(step % 4 * 32);
    wgmma_shared<T>(products, describe_rows(queries, static_cast<std::uint32_t>(step / 4 * kRows * 128) + within),
                    describe_rows(keys, static_cast<std::uint32_t>(step / 4 * kTileBytes) + within), step > 0 ? 1 : 0);
  }
  wgmma_commit();
}

// Starts sums[64,D] += weights[64,64] v.
template <class T, int D>
__device__ __forceinline__ void start_values(float (&sums)[D / 2], const std::uint32_t (&weights)[4][4],
                                             std::uint32_t values) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    wgmma<T, true>(sums, weights[step], describe_columns(values, static_cast<std::uint32_t>(step * 2048)), 1);
  }
  wgmma_commit();
}

template <class T>
__device__ __forceinline__ void pack_weights(std::uint32_t (&to)[4][4], const float (&weights)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) to[i / 4][i % 4] = pack<T>(weights[2 * i], weights[2 * i + 1]);
}

// The consumers start their products in turns, so that one computes weights while the other multiplies.
class Turns {
 public:
  // Each takes `count` turns; consumer 0 has the first.
  __device__ Turns(int consumer, int count) : consumer_(consumer), left_(count) {
    if (consumer != 0 && count > 0) arrive();
  }
  __device__ void wait() const { named_barrier(kTurnBarriers + consumer_, kConsumers * kWarpgroup); }
  __device__ void pass() {
    if (--left_ > 0 || consumer_ == 0) arrive();
  }

 private:
  __device__ void arrive() const { named_barrier_arrive(kTurnBarriers + 1 - consumer_, kConsumers * kWarpgroup); }

  int consumer_;
  int left_;
};

// A consumer warpgroup, with rows 64 `consumer` and the next 63, of the block's split.
template <class T, int D>
__device__ void consume(const AttentionCall& p, const AttentionTile& tile, int key_head, int split, KeyTiles of,
                        const Ring& ring, std::uint32_t queries, const float* factors_of_rows, int consumer,
                        int thread) {
  const int steps = of.count;
  const int lane = thread % kWarpSize;
  const int warp_row = 64 * consumer + thread / kWarpSize * 16;
  const int row = warp_row + lane / 4;  // and the row 8 further
  const auto visible = [&](int of) { return tile.first_visible + min(of, tile.rows - 1) / p.group; };
  const int visible_low = visible(row);
  const int visible_high = visible(row + 8);
  const int visible_first = visible(warp_row);
  const float factors[2] = {factors_of_rows[row], factors_of_rows[row + 8]};
  queries += static_cast<std::uint32_t>(64 * consumer * 128);
  const auto slot = [&](int number) {
    return ring.address + static_cast<std::uint32_t>(number % kSlots * kSlotBytes<D>);
  };
  // Each warp reports that it has read a tile.
  const auto release = [&](int number) {
    if (lane == 0) ring.empty[number % kSlots].arrive();
  };
  OnlineSoftmax softmax;
  float products[32];
  float sums[D / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0F;
  std::uint32_t weights[4][4];
  const auto find_weights = [&](int step) {
    float(&blocks)[8][4] = reinterpret_cast<float(&)[8][4]>(products);
    const int first = (of.first + step) * kKeys;
    if (first + kKeys > visible_first) mask_products(blocks, first, visible_low, visible_high);
    return softmax.update(blocks, factors);
  };

  Turns turns(consumer, steps - 1);
  ring.wait_full(0);
  start_keys<T, D>(products, queries, slot(0));
  wgmma_wait<0>();
  pin(products);
  release(0);
  find_weights(0);
  pack_weights<T>(weights, products);
#pragma unroll 1
  for (int step = 1; step < steps; ++step) {
    const int keys = 2 * step - 1;
    const int values = 2 * step;
    ring.wait_full(keys);
    ring.wait_full(values);
    turns.wait();
    start_keys<T, D>(products, queries, slot(keys));
    start_values<T, D>(sums, weights, slot(values));
    turns.pass();
    wgmma_wait<1>();
    pin(products);
    release(keys);
    const float2 shrink = find_weights(step);
    wgmma_wait<0>();
    pin(sums);
    release(values);
    // The maxima hardly ever change after the first tiles.
    if (__any_sync(0xFFFFFFFFU, shrink.x != 1.0F || shrink.y != 1.0F)) {
#pragma unroll
      for (int i = 0; i < D / 2; ++i) sums[i] *= i % 4 < 2 ? shrink.x : shrink.y;
    }
    pack_weights<T>(weights, products);
  }
  ring.wait_full(2 * steps - 1);
  start_values<T, D>(sums, weights, slot(2 * steps - 1));
  wgmma_wait<0>();
  pin(sums);

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float total = softmax.total(i);
    const int own = row + 8 * i;
    if (own >= tile.rows) continue;
    const std::int64_t token = tile.begin + own / p.group;
    const int head = key_head * p.group + own % p.group;
    const auto sum = [&](int block) { return float2{sums[4 * block + 2 * i], sums[4 * block + 2 * i + 1]}; };
    if (p.splits == 1) {
      const float share = 1.0F / total;
      finish_row<8, D / 8>(p, token, head, lane % 4 * 2, [&](int block) {
        return float2{sum(block).x * share, sum(block).y * share};
      });
      continue;
    }
    const std::int64_t index = split_index(p, token, head, split);
    if (lane % 4 == 0) {
      *reinterpret_cast<float2*>(p.statistics + 2 * index) = {softmax.maxima[i] * factors[i], total};
    }
#pragma unroll
    for (int block = 0; block < D / 8; ++block) {
      *reinterpret_cast<float2*>(p.partials + index * D + 8 * block + lane % 4 * 2) = sum(block);
    }
  }
}

template <class T, int D>
__global__ void __launch_bounds__(kThreads, 1) attention_prefill_kernel(const __grid_constant__ AttentionCall p) {
  extern __shared__ std::uint8_t dynamic_shared[];
  __shared__ std::uint64_t full_barriers[kSlots];
  __shared__ std::uint64_t empty_barriers[kSlots];
  __shared__ float factors_of_rows[kRows];
  pdl_trigger_and_wait();
  const AttentionTile tile = find_tile(p, gridDim.x - 1 - blockIdx.x);
  if (tile.rows == 0) return;
  const int key_head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const int split = static_cast<int>(blockIdx.z);
  if (tile.sequence.absent) {
    if (p.splits == 1) zero_rows(p, tile, key_head, thread, kThreads);
    return;  // the second kernel finds absent sequences itself
  }
  const auto [begin, end] = split_range(p, tile, split);
  if (begin >= end) return;

  const std::uint32_t misaligned = shared_address(dynamic_shared) % 1024;
  std::uint8_t* const shared = dynamic_shared + (misaligned == 0 ? 0 : 1024 - misaligned);
  const std::uint32_t queries = shared_address(shared);
  const Ring ring{queries + kRows * D * 2, {shared_address(full_barriers)}, {shared_address(empty_barriers)}};
  if (thread == 0) {
    for (int i = 0; i < kSlots; ++i) {
      ring.full[i].init(kWarpgroup);
      ring.empty[i].init(kConsumers * kWarpgroup / kWarpSize);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  static_assert(kSplitStep % kKeys == 0 && kSplitRound % kKeys == 0);
  const KeyTiles tiles{begin / kKeys, (end - begin + kKeys - 1) / kKeys};
  if (thread < kWarpgroup) {
    setmaxnreg_dec<40>();
    produce<D>(p, tile, key_head, tiles, ring, thread);
  } else {
    setmaxnreg_inc<232>();
    const int consumer = thread / kWarpgroup - 1;
    constexpr int kWarps = kConsumers * kWarpgroup / kWarpSize;
    load_queries<T, D, kRows>(p, tile, key_head, shared, factors_of_rows, thread / kWarpSize - kWarpgroup / kWarpSize,
                              kWarps);
    fence_proxy_async();
    named_barrier(kConsumerBarrier, kConsumers * kWarpgroup);
    consume<T, D>(p, tile, key_head, split, tiles, ring, queries, factors_of_rows, consumer, thread % kWarpgroup);
  }
}

template <class T, int D>
void launch(const AttentionCall& call, dim3 grid, const DeviceProperties& device, cudaStream_t stream) {
  static constexpr std::string_view kOperation = "attention";
  allow_shared_memory(reinterpret_cast<const void*>(attention_prefill_kernel<T, D>), kSharedBytes<D>, kOperation);
  pdl_launch(attention_prefill_kernel<T, D>, grid, dim3(kThreads), kSharedBytes<D>, device, stream, kOperation, call);
}

}  // namespace

void launch_attention_prefill(const AttentionCall& call, DType cache, unsigned tiles, const DeviceProperties& device,
                              cudaStream_t stream) {
  const dim3 grid(tiles, static_cast<unsigned>(call.heads / call.group), static_cast<unsigned>(call.splits));
  if (cache == DType::kBF16) {
    call.width == 256 ? launch<__nv_bfloat16, 256>(call, grid, device, stream)
                      : launch<__nv_bfloat16, 128>(call, grid, device, stream);
  } else {
    call.width == 256 ? launch<__half, 256>(call, grid, device, stream)
                      : launch<__half, 128>(call, grid, device, stream);
  }
}

}  // namespace thalweg::cu::sm90
