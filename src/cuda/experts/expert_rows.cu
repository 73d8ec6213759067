// Which pairs of token and slot each expert serves: a counting sort, and, beside it in the same launch, the conversion
// of the activations to bf16 or f16.
//
// One block writes what follows from the counts: offsets, items, tiles. Each of the others places a stretch of the
// pairs. No block waits for another: every one of them counts all pairs.

#include <algorithm>
#include <type_traits>

#include "cuda/common/mma.h"
#include "cuda/common/pairs.h"
#include "cuda/common/pdl.h"
#include "cuda/common/views.h"
#include "cuda/common/warp.h"
#include "cuda/experts/activation_slices.h"
#include "cuda/experts/expert_lists.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 1024;
constexpr int kMostWarps = kThreads / kWarpSize;
// What every GPU from 8.0 on has, less a little for the scan.
constexpr std::int64_t kCounterBytes = 160 * 1024;

// How the pairs are cut into stretches, by block and warp.
struct Stretches {
  int blocks = 0;
  int warps = 0;  // of a block
  int pairs = 0;  // of a warp

  __host__ __device__ int block_pairs() const { return warps * pairs; }
  // Counts of each expert: those of the block's warps between those of the pairs before and behind.
  __host__ __device__ int first_warp() const { return blocks > 1 ? 1 : 0; }
  __host__ __device__ int counts() const { return warps + 2 * first_warp(); }
};

// Few pairs have few warps: all counts of an expert are gone through. A block stores to one place after the other,
// which takes it long; counting more often is cheap.
Stretches cut_pairs(int experts, int pairs) {
  constexpr int kPairsPerWarp = 128;
  constexpr int kPairsPerBlock = 1024;
  constexpr int kMostBlocks = 64;
  const auto fit = static_cast<int>(std::min<std::int64_t>(kCounterBytes / (4 * std::int64_t{experts}), kMostWarps));
  const auto parts = [](int of, int each) { return (of + each - 1) / each; };
  Stretches result;
  const int blocks = fit < 3 ? 1 : std::clamp(parts(pairs, kPairsPerBlock), 1, kMostBlocks);
  const int share = parts(pairs, blocks);
  result.warps = std::clamp(parts(share, kPairsPerWarp), 1, std::max(1, blocks > 1 ? fit - 2 : fit));
  result.pairs = std::max(1, parts(share, result.warps * kWarpSize)) * kWarpSize;
  result.blocks = std::max(1, parts(pairs, result.block_pairs()));
  return result;
}

// The exclusive sums of rows and items over the block's threads, and the totals.
struct RowsAndItems {
  int rows;
  int items;
};
__device__ inline RowsAndItems operator+(RowsAndItems a, RowsAndItems b) {
  return {a.rows + b.rows, a.items + b.items};
}
__device__ inline RowsAndItems warp_scan(RowsAndItems value, int lane) {
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const RowsAndItems other{__shfl_up_sync(0xFFFFFFFFU, value.rows, distance),
                             __shfl_up_sync(0xFFFFFFFFU, value.items, distance)};
    if (lane >= distance) value = value + other;
  }
  return value;
}
__device__ RowsAndItems block_scan(RowsAndItems value, RowsAndItems* warp_sums, RowsAndItems& total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const RowsAndItems own = warp_scan(value, lane);
  __syncthreads();  // warp_sums may still be read
  if (lane == kWarpSize - 1) warp_sums[warp] = own;
  __syncthreads();
  const RowsAndItems all = warp_scan(warp_sums[lane], lane);
  const auto of_warp = [&](int w) {
    return RowsAndItems{__shfl_sync(0xFFFFFFFFU, all.rows, w), __shfl_sync(0xFFFFFFFFU, all.items, w)};
  };
  total = of_warp(kMostWarps - 1);
  const RowsAndItems before = of_warp(warp > 0 ? warp - 1 : 0);
  const RowsAndItems here = warp > 0 ? before : RowsAndItems{0, 0};
  return {here.rows + own.rows - value.rows, here.items + own.items - value.items};
}
static_assert(kMostWarps == kWarpSize);

// The experts of the pairs `pair`, `pair + kStep`, ... below `end`, all asked for at once; -1 beyond and for none.
constexpr int kAtOnce = 8;
template <int kStep>
__device__ inline void read_ids(const ExpertIds& ids, int pair, int end, int (&experts)[kAtOnce]) {
  const auto read = [&](auto id_of) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) experts[i] = pair + i * kStep < end ? id_of(pair + i * kStep) : -1;
  };
  // Nothing but loads in the loop, or each waits for the one before.
  if (ids.data == nullptr) {
    read([](int) { return 0; });
  } else if (ids.stride == ids.slots) {
    read([&](int at) { return ids.data[at]; });
  } else {
    read([&](int at) { return ids.data[at / ids.slots * ids.stride + at % ids.slots]; });
  }
#pragma unroll
  for (int& expert : experts) {
    if (expert >= ids.experts) expert = -1;
  }
}

// One more in shared memory. Of atomicAdd the compiler works out the address again each time, slowly.
__device__ inline void add_one(std::uint32_t address) {
  asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(address) : "memory");
}

// The pairs from `pair` on in steps of kStep to the counts of their experts. Returns whether one has no expert.
template <int kStep>
__device__ inline bool count_pairs(const ExpertIds& ids, int pair, int end, int* counts) {
  const std::uint32_t to = shared_address(counts);
  bool wrong = false;
  for (; pair < end; pair += kAtOnce * kStep) {
    int experts[kAtOnce];
    read_ids<kStep>(ids, pair, end, experts);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (experts[i] >= 0) add_one(to + 4 * static_cast<std::uint32_t>(experts[i]));
      wrong |= experts[i] < 0 && pair + i * kStep < end;
    }
  }
  return wrong;
}

// Gives each expert's rows and items to `use`, with where they begin; returns the totals. counts[num_counts][experts].
template <class Use>
__device__ RowsAndItems for_each_expert(const int* counts, int num_counts, int experts, int item_rows, Use use) {
  __shared__ RowsAndItems warp_sums[kMostWarps];
  RowsAndItems before{0, 0};
  for (int base = 0; base < experts; base += kThreads) {
    const int expert = base + static_cast<int>(threadIdx.x);
    RowsAndItems own{0, 0};
    if (expert < experts) {
#pragma unroll 4
      for (int i = 0; i < num_counts; ++i) own.rows += counts[i * experts + expert];
    }
    if (item_rows > 0) own.items = (own.rows + item_rows - 1) / item_rows;
    RowsAndItems total{};
    const RowsAndItems first = before + block_scan(own, warp_sums, total);
    before = before + total;
    if (expert < experts) use(expert, first, own);
  }
  return before;
}

// By the block that places no pairs.
__device__ void write_tables(const ExpertIds& ids, const ExpertLists& lists, int* counts) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < ids.experts; i += kThreads) counts[i] = 0;
  __syncthreads();
  if (count_pairs<kThreads>(ids, thread, ids.pairs, counts) && ids.fault != nullptr) {
    atomicOr(ids.fault, static_cast<std::int32_t>(kFaultExpertIds));
  }
  __syncthreads();
  const auto write = [&](int expert, RowsAndItems first, RowsAndItems own) {
    lists.offsets[expert] = first.rows;
    for (int i = 0; i < own.items; ++i) {
      const int done = i * lists.item_rows;
      lists.items[first.items + i] = {expert, first.rows + done, min(lists.item_rows, own.rows - done)};
    }
  };
  const RowsAndItems total =
      for_each_expert(counts, 1, ids.experts, lists.items != nullptr ? lists.item_rows : 0, write);
  if (thread == 0) {
    lists.offsets[ids.experts] = total.rows;
    if (lists.num_items != nullptr) *lists.num_items = total.items;
  }
  if (lists.tiles != nullptr) cut_tiles<kThreads>(lists.offsets, ids.experts, lists.tiles, lists.tile_count, counts);
}

// The block's stretch of the pairs to the lists. Each warp counts its own, so that their order is that of the pairs.
__device__ void place_pairs(const ExpertIds& ids, const ExpertLists& lists, const Stretches& stretches, int block,
                            int* counts) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  for (int i = thread; i < stretches.counts() * ids.experts; i += kThreads) counts[i] = 0;
  __syncthreads();
  const int block_first = block * stretches.block_pairs();
  const int block_end = min(ids.pairs, block_first + stretches.block_pairs());
  const int first = block_first + warp * stretches.pairs;
  const int end = warp < stretches.warps ? min(block_end, first + stretches.pairs) : 0;
  int* own = counts + (stretches.first_warp() + warp) * ids.experts;
  count_pairs<kWarpSize>(ids, first + lane, end, own);
  if (stretches.blocks > 1) {
    count_pairs<kThreads>(ids, thread, block_first, counts);
    count_pairs<kThreads>(ids, block_end + thread, ids.pairs, counts + (stretches.counts() - 1) * ids.experts);
  }
  __syncthreads();
  // Counts become where the first pair that was counted goes.
  for_each_expert(counts, stretches.counts(), ids.experts, 0, [&](int expert, RowsAndItems begin, RowsAndItems) {
    int next = begin.rows;
#pragma unroll 4
    for (int i = 0; i < stretches.counts(); ++i) {
      int& count = counts[i * ids.experts + expert];
      const int counted = count;
      count = next;
      next += counted;
    }
  });
  __syncthreads();
  for (int step = first; step < end; step += kAtOnce * kWarpSize) {
    int experts[kAtOnce];
    read_ids<kWarpSize>(ids, step + lane, end, experts);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (step + i * kWarpSize >= end) break;
      const int expert = experts[i];
      const unsigned same = __match_any_sync(0xFFFFFFFFU, expert);
      const int rank = __popc(same & ((1U << lane) - 1));
      int place = 0;
      if (expert >= 0) place = own[expert] + rank;
      __syncwarp();
      if (expert >= 0) {
        lists.rows[place] = step + i * kWarpSize + lane;
        if (rank == 0) own[expert] = place + __popc(same);
      }
      __syncwarp();
    }
  }
}

// Rows of activations for a block of the conversion, in pieces of eight.
constexpr int kPiecesPerThread = 2;
constexpr int kPiecesPerBlock = kThreads * kPiecesPerThread;

struct Conversion {
  Elements x;
  const float* up = nullptr;  // not null: of silu(x) * up, both f32 and without gaps
  int slots = 0;              // 0: x is [T,K]
  std::int64_t rows = 0;
  int k = 0;
  int padded_k = 0;
  std::uint16_t* to = nullptr;
  float* factors = nullptr;  // of the rows, where they are scaled
  ActivationOrder order = ActivationOrder::kRows;

  template <class T>
  __device__ const T* begin(std::int64_t row) const {
    const int r = static_cast<int>(row);  // a pair, or fewer
    return static_cast<const T*>(x.data) + (slots == 0 ? x.offset(r) : x.offset(r / slots, r % slots));
  }
};

// Eight values in the order of the tiled matmuls: pairs of four runs of 32.
template <class T>
__device__ inline void read_staged(const Conversion& c, const T* data, int first, float (&values)[8]) {
  const int base = first / kStagedRun * kStagedRun + first % kStagedRun / 4;
  const bool pairs = c.x.fours && base + 98 <= c.k;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int k = base + i * 32;
    float2 pair{};
    if (pairs) {
      pair = load_two(data + k);
    } else {
      if (k < c.k) pair.x = to_f32(data[k]);
      if (k + 1 < c.k) pair.y = to_f32(data[k + 1]);
    }
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}

// Columns k to k + 3 of a row that begins at `data`; zeros from K on.
template <class T>
__device__ inline float4 read_four(const Conversion& c, const T* data, std::int64_t row, int k) {
  const bool whole = c.x.fours && k + 4 <= c.k;
  const auto four_of = [&](const auto* from) {
    if (whole) return load_four(from + k);
    const auto read = [&](int i) { return k + i < c.k ? to_f32(from[k + i]) : 0.0F; };
    return float4{read(0), read(1), read(2), read(3)};
  };
  const float4 four = four_of(data);
  if constexpr (std::is_same_v<T, float>) {
    if (c.up != nullptr) {
      const float4 up = four_of(c.up + row * c.k);
      const auto gated = [](float gate, float value) { return __fdividef(gate, 1.0F + __expf(-gate)) * value; };
      return {gated(four.x, up.x), gated(four.y, up.y), gated(four.z, up.z), gated(four.w, up.w)};
    }
  }
  return four;
}

template <class T>
__device__ void convert_piece(const Conversion& c, std::int64_t row, int first) {
  if (row >= c.rows) return;
  const T* data = c.begin<T>(row);
  float values[8];
  if (c.order == ActivationOrder::kTiles) {
    read_staged(c, data, first, values);
  } else {
    const float4 a = read_four(c, data, row, first);
    const float4 b = read_four(c, data, row, first + 4);
    values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
    values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
  }
  uint4 packed;
  packed.x = pack<__nv_bfloat16>(values[0], values[1]);
  packed.y = pack<__nv_bfloat16>(values[2], values[3]);
  packed.z = pack<__nv_bfloat16>(values[4], values[5]);
  packed.w = pack<__nv_bfloat16>(values[6], values[7]);
  *reinterpret_cast<uint4*>(c.to + row * c.padded_k + first) = packed;
}

// ---- scaled rows, a slice by a warp

__host__ __device__ inline int slices_of(const Conversion& c) { return (c.padded_k + kSliceValues - 1) / kSliceValues; }
__host__ __device__ inline int rows_per_block(const Conversion& c) {
  const int slices = slices_of(c);
  return slices < kMostWarps ? kMostWarps / slices : 1;
}

// The lane's eight values of a slice, in their order there.
template <class T>
__device__ inline void read_piece(const Conversion& c, std::int64_t row, int slice, float (&values)[8]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const T* data = c.begin<T>(row);
  if (c.order == ActivationOrder::kScaledTiles) {
    return read_staged(c, data, slice * kSliceValues + 8 * lane, values);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 read = read_four(c, data, row, slice * kSliceValues + slice_source(lane, 4 * half));
    const float four[4] = {read.x, read.y, read.z, read.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) values[4 * half + i] = four[slice_source(0, i)];
  }
}

// A slice's record, by a warp.
__device__ inline void write_record(const float (&values)[8], float factor, std::uint16_t* record) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  std::uint32_t packed[4];
  float sums[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = 0.0F;
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      packed[i] = pack<__half>(values[2 * i] * factor, values[2 * i + 1] * factor);
      const float2 rounded = unpack<__half>(packed[i]);
      sum += rounded.x + rounded.y;
    }
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
    sums[half] = sum + __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
  }
  *reinterpret_cast<uint4*>(record + 8 * lane) = {packed[0], packed[1], packed[2], packed[3]};
  const std::uint32_t upper = pack<__half>(sums[0], sums[1]);
  const float2 rounded = unpack<__half>(upper);
  const std::uint32_t lower = pack<__half>(sums[0] - rounded.x, sums[1] - rounded.y);
  const int part = lane / 4;  // of 32 activations
  const int which = lane % 4;
  if (which > 1) return;
  auto* words = reinterpret_cast<std::uint32_t*>(record + kSliceValues);
  words[part / 2 * 4 + which * 2 + part % 2] = which == 0 ? upper : lower;
}

// The lane's values to their place in a staged row.
__device__ inline void write_staged(const float (&values)[8], float factor, int columns, std::uint16_t* slice) {
  const int first = static_cast<int>(threadIdx.x) % kWarpSize * 8;
  if (first >= columns) return;
  uint4 packed;
  packed.x = pack<__half>(values[0] * factor, values[1] * factor);
  packed.y = pack<__half>(values[2] * factor, values[3] * factor);
  packed.z = pack<__half>(values[4] * factor, values[5] * factor);
  packed.w = pack<__half>(values[6] * factor, values[7] * factor);
  *reinterpret_cast<uint4*>(slice + first) = packed;
}

// A warp takes one slice after the other of the block's rows.
template <class T>
__device__ void convert_scaled(const Conversion& c, std::int64_t block) {
  __shared__ unsigned largest[kMostWarps];  // as bits, in whose order positive floats are
  const int thread = static_cast<int>(threadIdx.x);
  const int slices = slices_of(c);
  const std::int64_t first_row = block * rows_per_block(c);
  const int rows = static_cast<int>(min(c.rows - first_row, static_cast<std::int64_t>(rows_per_block(c))));
  if (thread < kMostWarps) largest[thread] = 0;
  __syncthreads();
  float values[8];
  for (int i = thread / kWarpSize; i < rows * slices; i += kMostWarps) {
    const int row = i / slices;
    read_piece<T>(c, first_row + row, i - row * slices, values);
    float most = 0.0F;
#pragma unroll
    for (const float value : values) most = fmaxf(most, fabsf(value));
    const unsigned bits = __reduce_max_sync(0xFFFFFFFFU, __float_as_uint(most));
    if (thread % kWarpSize == 0) atomicMax(largest + row, bits);
  }
  __syncthreads();
  for (int i = thread / kWarpSize; i < rows * slices; i += kMostWarps) {
    const int row = i / slices;
    if (slices > kMostWarps) read_piece<T>(c, first_row + row, i - row * slices, values);  // else they are still there
    // Powers of two with which, and by which, the row is divided; in range also for the smallest and for infinity.
    const unsigned exponent = max(largest[row] >> 23, 4U);
    const float factor = __uint_as_float((253 + kRowExponent - exponent) << 23);
    const int slice = i - row * slices;
    if (c.order == ActivationOrder::kScaledTiles) {
      const int first = slice * kSliceValues;
      write_staged(values, factor, c.padded_k - first, c.to + (first_row + row) * c.padded_k + first);
    } else {
      write_record(values, factor, c.to + ((first_row + row) * slices + slice) * kSliceRecord);
    }
    if (i == row * slices && thread % kWarpSize == 0) {
      c.factors[first_row + row] = __uint_as_float((exponent + 1 - kRowExponent) << 23);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    prepare_kernel(ExpertIds ids, ExpertLists lists, Stretches stretches, Conversion c) {
  extern __shared__ int counts[];
  pdl_wait();
  const int list_blocks = stretches.blocks > 0 ? 1 + stretches.blocks : 0;
  const int block = static_cast<int>(blockIdx.x);
  if (block < list_blocks) {
    block == 0 ? write_tables(ids, lists, counts) : place_pairs(ids, lists, stretches, block - 1, counts);
  } else if (c.factors != nullptr) {
    with_type(c.x.dtype, [&]<class T>(T) { convert_scaled<T>(c, block - list_blocks); });
  } else {
    const int per_row = c.padded_k / 8;
    const std::int64_t first = static_cast<std::int64_t>(block - list_blocks) * kPiecesPerBlock;
    const std::int64_t row = first / per_row;
    const int skipped = static_cast<int>(first - row * per_row) + static_cast<int>(threadIdx.x);
    with_type(c.x.dtype, [&]<class T>(T) {
#pragma unroll
      for (int i = 0; i < kPiecesPerThread; ++i) {
        const int piece = skipped + i * kThreads;
        convert_piece<T>(c, row + piece / per_row, piece % per_row * 8);
      }
    });
  }
  pdl_trigger();
}

void launch_prepare(const ExpertIds& ids, const ExpertLists& lists, const Conversion& conversion, const Stream& stream,
                    std::string_view operation) {
  Stretches stretches;
  std::int64_t counts = 0;
  if (lists.offsets != nullptr) {
    stretches = cut_pairs(ids.experts, ids.pairs);
    counts = std::int64_t{ids.experts} * stretches.counts();
  }
  if (lists.tiles != nullptr) counts = std::max<std::int64_t>(counts, kTileClassCount * kThreads);
  const auto shared = static_cast<std::size_t>(4 * counts);
  const DeviceProperties& device = properties(stream.device.index);
  if (shared > 48 * 1024) allow_shared_memory(reinterpret_cast<const void*>(prepare_kernel), shared, operation);
  const bool scaled = conversion.factors != nullptr && conversion.padded_k > 0;
  const std::int64_t work = scaled ? conversion.rows : conversion.rows * (conversion.padded_k / 8);
  const std::int64_t share = scaled ? rows_per_block(conversion) : kPiecesPerBlock;
  const int list_blocks = stretches.blocks > 0 ? 1 + stretches.blocks : 0;
  const auto blocks = static_cast<unsigned>(list_blocks + (work + share - 1) / share);
  if (blocks == 0) return;
  pdl_launch(prepare_kernel, blocks, kThreads, shared, device, native(stream), operation, ids, lists, stretches,
             conversion);
}

std::string too_many_experts(std::int64_t experts) {
  if (experts <= kMostListedExperts) return {};
  return "takes at most " + std::to_string(kMostListedExperts) + " experts";
}

std::string supports(const ExpertRowsArgs& args, const Stream&) {
  return too_many_experts(args.expert_offsets.dim(0) - 1);
}

void run(const ExpertRowsArgs& args, Workspace, const Stream& stream) {
  const CurrentDevice current(stream, args.kName);
  ExpertLists lists;
  lists.offsets = static_cast<std::int32_t*>(args.expert_offsets.data);
  lists.rows = static_cast<std::int32_t*>(args.rows.data);
  launch_prepare(expert_ids(args.expert_ids, args.expert_offsets.dim(0) - 1, args.fault), lists, {}, stream,
                 args.kName);
}

constexpr Kernel<ExpertRowsArgs> kKernels[] = {{"counting", supports, no_workspace<ExpertRowsArgs>, run}};

}  // namespace

KernelList<ExpertRowsArgs> expert_rows_kernels() { return kKernels; }

ExpertIds expert_ids(const ConstTensor& ids, std::int64_t experts, const Tensor& fault) {
  return {static_cast<const std::int32_t*>(ids.data),
          ids.stride(0),
          static_cast<int>(ids.dim(1)),
          static_cast<int>(ids.size()),
          static_cast<int>(experts),
          fault.defined() ? static_cast<std::int32_t*>(fault.data) : nullptr};
}

ExpertIds one_expert(std::int64_t pairs) { return {nullptr, 1, 1, static_cast<int>(pairs), 1, nullptr}; }

std::int64_t most_items(std::int64_t experts, std::int64_t pairs, int item_rows) {
  // Every hit expert may have one item that is not full.
  return std::min(experts, pairs) + pairs / item_rows;
}

namespace {

std::int64_t rows_of(const ConstTensor& x) { return x.rank == 2 ? x.dim(0) : x.dim(0) * x.dim(1); }

}  // namespace

ExpertPlan::ExpertPlan(const ConstTensor& x, std::int64_t pairs, std::int64_t experts, int item_rows, int slice,
                       ActivationOrder order_, Arena& arena)
    : order(order_), slices((x.dim(x.rank - 1) + slice - 1) / slice), padded_k(slices * slice) {
  const bool sliced = order == ActivationOrder::kSlices;
  activations = arena.take<std::uint16_t>(rows_of(x) * slices * (sliced ? kSliceRecord : slice));
  factors = sliced ? arena.take<float>(rows_of(x)) : nullptr;
  lists.item_rows = item_rows;
  lists.offsets = arena.take<std::int32_t>(experts + 1);
  lists.rows = arena.take<std::int32_t>(pairs);
  lists.items = arena.take<ExpertItem>(most_items(experts, pairs, item_rows));
  lists.num_items = arena.take<std::int32_t>(1);
}

namespace {

Conversion conversion_of(const ConstTensor& x, std::int64_t padded_k, std::uint16_t* to) {
  Conversion conversion;
  conversion.x = elements(x);
  conversion.slots = x.rank == 2 ? 0 : static_cast<int>(x.dim(1));
  conversion.rows = rows_of(x);
  conversion.k = static_cast<int>(x.dim(x.rank - 1));
  conversion.padded_k = static_cast<int>(padded_k);
  conversion.to = to;
  return conversion;
}

}  // namespace

void prepare_tiles(const ExpertLists& lists, const ExpertIds& ids, const ConstTensor& x, std::uint16_t* staged,
                   const Stream& stream, std::string_view operation, float* factors) {
  Conversion conversion = conversion_of(x, staged_columns(x.dim(x.rank - 1)), staged);
  conversion.order = factors != nullptr ? ActivationOrder::kScaledTiles : ActivationOrder::kTiles;
  conversion.factors = factors;
  launch_prepare(ids, lists, conversion, stream, operation);
}

void convert_rows(const ConstTensor& x, std::uint16_t* to, const Stream& stream, std::string_view operation) {
  launch_prepare({}, {}, conversion_of(x, x.dim(1), to), stream, operation);
}

namespace {

Conversion conversion_of(const ExpertPlan& plan, const ConstTensor& x) {
  Conversion conversion = conversion_of(x, plan.padded_k, plan.activations);
  conversion.order = plan.order;
  conversion.factors = plan.factors;
  return conversion;
}

}  // namespace

void prepare_experts(const ExpertPlan& plan, const ExpertIds& ids, const ConstTensor& x, const Stream& stream,
                     std::string_view operation) {
  launch_prepare(ids, plan.lists, conversion_of(plan, x), stream, operation);
}

void prepare_gated(const ExpertPlan& plan, bool has_lists, const ExpertIds& ids, const ConstTensor& gate,
                   const ConstTensor& up, const Stream& stream, std::string_view operation) {
  Conversion conversion = conversion_of(plan, gate);
  conversion.up = static_cast<const float*>(up.data);
  launch_prepare(ids, has_lists ? ExpertLists{} : plan.lists, conversion, stream, operation);
}

}  // namespace thalweg::cu
