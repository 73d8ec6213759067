// Which pairs of token and slot each expert serves: a counting sort by one block, and, beside it in the same launch,
// the conversion of the activations to bf16 or f16.

#include <algorithm>

#include "cuda/device/activation_slices.h"
#include "cuda/device/fragments.h"
#include "cuda/device/launch_order.h"
#include "cuda/device/warp.h"
#include "cuda/expert_lists.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/views.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 1024;
constexpr int kMostWarps = kThreads / kWarpSize;
// What every GPU from 8.0 on has, less a little for the scan.
constexpr std::int64_t kCounterBytes = 160 * 1024;

// Few pairs have few warps: every warp's counters are gone through for every expert.
__host__ __device__ inline int counting_warps(int experts, int pairs) {
  constexpr int kPairsPerWarp = 128;
  const auto fit = static_cast<int>(kCounterBytes / (4 * static_cast<std::int64_t>(experts)));
  const int useful = (pairs + kPairsPerWarp - 1) / kPairsPerWarp;
  const int most = fit < kMostWarps ? fit : kMostWarps;
  return useful < 1 || most < 1 ? 1 : (useful < most ? useful : most);
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

// The experts of a lane's pairs of `steps` steps, all asked for at once; -1 beyond the last and for none.
constexpr int kAtOnce = 8;
__device__ inline void read_ids(const ExpertIds& ids, int pair, int steps, int (&experts)[kAtOnce]) {
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int at = pair + i * kWarpSize;
    experts[i] = i < steps && at < ids.pairs ? ids.of(at) : -1;
  }
}

// Each warp has a stretch of the pairs and counters of its own, so that the order of the lists is that of the pairs.
__device__ void build_lists(const ExpertIds& ids, const ExpertLists& lists, int* counters) {
  __shared__ RowsAndItems warp_sums[kMostWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  const int warps = counting_warps(ids.experts, ids.pairs);
  const int steps = (ids.pairs + warps * kWarpSize - 1) / (warps * kWarpSize);
  const int first = warp * steps * kWarpSize;
  int* own = counters + warp * ids.experts;
  for (int i = thread; i < warps * ids.experts; i += kThreads) counters[i] = 0;
  __syncthreads();
  bool wrong = false;
  for (int step = 0; warp < warps && step < steps; step += kAtOnce) {
    int experts[kAtOnce];
    read_ids(ids, first + step * kWarpSize + lane, steps - step, experts);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool inside = step + i < steps && first + (step + i) * kWarpSize + lane < ids.pairs;
      wrong |= inside && experts[i] < 0;
      if (experts[i] >= 0) atomicAdd(own + experts[i], 1);
    }
  }
  if (wrong && ids.fault != nullptr) atomicOr(ids.fault, static_cast<std::int32_t>(kFaultExpertIds));
  __syncthreads();

  // Counters become where a warp's first pair of that expert goes.
  RowsAndItems before{0, 0};
  for (int base = 0; base < ids.experts; base += kThreads) {
    const int expert = base + thread;
    int count = 0;
    if (expert < ids.experts) {
#pragma unroll 4
      for (int w = 0; w < warps; ++w) count += counters[w * ids.experts + expert];
    }
    const int items = lists.items != nullptr ? (count + lists.item_rows - 1) / lists.item_rows : 0;
    RowsAndItems total{};
    const RowsAndItems first_of = before + block_scan({count, items}, warp_sums, total);
    before = before + total;
    if (expert >= ids.experts) continue;
    lists.offsets[expert] = first_of.rows;
    for (int i = 0; i < items; ++i) {
      const int done = i * lists.item_rows;
      lists.items[first_of.items + i] = {expert, first_of.rows + done, min(lists.item_rows, count - done)};
    }
    int next = first_of.rows;
#pragma unroll 4
    for (int w = 0; w < warps; ++w) {
      int& counter = counters[w * ids.experts + expert];
      const int counted = counter;
      counter = next;
      next += counted;
    }
  }
  if (thread == 0) {
    lists.offsets[ids.experts] = before.rows;
    if (lists.num_items != nullptr) *lists.num_items = before.items;
  }
  __syncthreads();

  if (warp >= warps) return;
  for (int step = 0; step < steps; step += kAtOnce) {
    int experts[kAtOnce];
    read_ids(ids, first + step * kWarpSize + lane, steps - step, experts);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int expert = experts[i];
      const unsigned same = __match_any_sync(0xFFFFFFFFU, expert);
      const int rank = __popc(same & ((1U << lane) - 1));
      int place = 0;
      if (expert >= 0) place = own[expert] + rank;
      __syncwarp();
      if (expert >= 0) {
        lists.rows[place] = first + (step + i) * kWarpSize + lane;
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
  int slots = 0;  // 0: x is [T,K]
  std::int64_t rows = 0;
  int k = 0;
  int padded_k = 0;
  std::uint16_t* to = nullptr;
  float* factors = nullptr;  // of the rows, where they are scaled
  ActivationOrder order = ActivationOrder::kRows;
};

// Eight values in the order of the tiled matmuls: pairs of four runs of 32.
template <class T>
__device__ inline void read_staged(const T* data, int k, int first, float (&values)[8]) {
  const int base = first / kStagedRun * kStagedRun + first % kStagedRun / 4;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int at = base + i / 2 * 32 + i % 2;
    values[i] = at < k ? to_f32(data[at]) : 0.0F;
  }
}

template <class T>
__device__ void convert_piece(const Conversion& c, std::int64_t piece) {
  const int per_row = c.padded_k / 8;
  const std::int64_t row = piece / per_row;
  if (row >= c.rows) return;
  const int first = static_cast<int>(piece - row * per_row) * 8;
  const std::int64_t from = c.slots == 0 ? c.x.offset(row) : c.x.offset(row / c.slots, row % c.slots);
  const T* data = static_cast<const T*>(c.x.data) + from;
  float values[8];
  if (c.order == ActivationOrder::kTiles) {
    read_staged(data, c.k, first, values);
  } else if (c.x.fours && first + 8 <= c.k) {
    const float4 a = load_four(data + first);
    const float4 b = load_four(data + first + 4);
    values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
    values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = first + i < c.k ? to_f32(data[first + i]) : 0.0F;
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
  const T* data =
      static_cast<const T*>(c.x.data) + (c.slots == 0 ? c.x.offset(row) : c.x.offset(row / c.slots, row % c.slots));
  if (c.order == ActivationOrder::kScaledTiles) {
    return read_staged(data, c.k, slice * kSliceValues + 8 * lane, values);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int k = slice * kSliceValues + slice_source(lane, 4 * half);
    float four[4];
    if (c.x.fours && k + 4 <= c.k) {
      const float4 read = load_four(data + k);
      four[0] = read.x, four[1] = read.y, four[2] = read.z, four[3] = read.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) four[i] = k + i < c.k ? to_f32(data[k + i]) : 0.0F;
    }
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
  for (int i = thread / kWarpSize; i < rows * slices; i += kMostWarps) {
    const int row = i / slices;
    float values[8];
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
    float values[8];
    read_piece<T>(c, first_row + row, i - row * slices, values);
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

__global__ void __launch_bounds__(kThreads) prepare_kernel(ExpertIds ids, ExpertLists lists, Conversion conversion) {
  extern __shared__ int counters[];
  wait_for_previous_kernel();
  const unsigned list_blocks = lists.offsets != nullptr ? 1 : 0;
  if (blockIdx.x < list_blocks) {
    build_lists(ids, lists, counters);
    if (lists.tiles != nullptr) {
      cut_tiles<kThreads>(lists.offsets, ids.experts, lists.tiles, lists.tile_count, counters);
    }
  } else if (conversion.factors != nullptr) {
    with_type(conversion.x.dtype, [&]<class T>(T) { convert_scaled<T>(conversion, blockIdx.x - list_blocks); });
  } else {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x - list_blocks) * kPiecesPerBlock + threadIdx.x;
    with_type(conversion.x.dtype, [&]<class T>(T) {
#pragma unroll
      for (int i = 0; i < kPiecesPerThread; ++i) convert_piece<T>(conversion, first + i * kThreads);
    });
  }
  allow_next_kernel();
}

void launch_prepare(const ExpertIds& ids, const ExpertLists& lists, const Conversion& conversion, const Stream& stream,
                    std::string_view operation) {
  const int list_blocks = lists.offsets != nullptr ? 1 : 0;
  std::size_t counters = 0;
  if (list_blocks > 0)
    counters = static_cast<std::size_t>(ids.experts) * static_cast<std::size_t>(counting_warps(ids.experts, ids.pairs));
  if (lists.tiles != nullptr) counters = std::max<std::size_t>(counters, kTileClassCount * kThreads);
  const std::size_t shared = 4 * counters;
  const DeviceProperties& device = properties(stream.device.index);
  if (shared > 48 * 1024) allow_shared_memory(reinterpret_cast<const void*>(prepare_kernel), shared, operation);
  const bool scaled = conversion.factors != nullptr && conversion.padded_k > 0;
  const std::int64_t work = scaled ? conversion.rows : conversion.rows * (conversion.padded_k / 8);
  const std::int64_t share = scaled ? rows_per_block(conversion) : kPiecesPerBlock;
  const auto blocks = static_cast<unsigned>(list_blocks + (work + share - 1) / share);
  if (blocks == 0) return;
  launch_early(prepare_kernel, blocks, kThreads, shared, device, native(stream), operation, ids, lists, conversion);
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

ExpertPlan ExpertPlan::make(const ConstTensor& x, std::int64_t pairs, std::int64_t experts, int item_rows, int slice,
                            ActivationOrder order, void* workspace) {
  ExpertPlan plan;
  const auto take = [&](std::int64_t bytes) -> void* {
    void* at = workspace == nullptr ? nullptr : static_cast<char*>(workspace) + plan.bytes;
    plan.bytes += static_cast<std::size_t>((bytes + 15) / 16 * 16);
    return at;
  };
  const std::int64_t k = x.dim(x.rank - 1);
  plan.order = order;
  plan.slices = (k + slice - 1) / slice;
  plan.padded_k = plan.slices * slice;
  const std::int64_t rows = x.rank == 2 ? x.dim(0) : x.dim(0) * x.dim(1);
  plan.activations = take(2 * rows * plan.slices * (order == ActivationOrder::kSlices ? kSliceRecord : slice));
  if (order == ActivationOrder::kSlices) plan.factors = static_cast<float*>(take(4 * rows));
  plan.lists.item_rows = item_rows;
  plan.lists.offsets = static_cast<std::int32_t*>(take(4 * (experts + 1)));
  plan.lists.rows = static_cast<std::int32_t*>(take(4 * pairs));
  plan.lists.items = static_cast<ExpertItem*>(
      take(static_cast<std::int64_t>(sizeof(ExpertItem)) * most_items(experts, pairs, item_rows)));
  plan.lists.num_items = static_cast<std::int32_t*>(take(4));
  return plan;
}

namespace {

Conversion conversion_of(const ConstTensor& x, std::int64_t padded_k, void* to) {
  Conversion conversion;
  conversion.x = elements(x);
  conversion.slots = x.rank == 2 ? 0 : static_cast<int>(x.dim(1));
  conversion.rows = x.rank == 2 ? x.dim(0) : x.dim(0) * x.dim(1);
  conversion.k = static_cast<int>(x.dim(x.rank - 1));
  conversion.padded_k = static_cast<int>(padded_k);
  conversion.to = static_cast<std::uint16_t*>(to);
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

void prepare_experts(const ExpertPlan& plan, const ExpertIds& ids, const ConstTensor& x, const Stream& stream,
                     std::string_view operation) {
  Conversion conversion = conversion_of(x, plan.padded_k, plan.activations);
  conversion.order = plan.order;
  conversion.factors = plan.factors;
  launch_prepare(ids, plan.lists, conversion, stream, operation);
}

}  // namespace thalweg::cu
