// One launch that makes the row lists of the experts and, beside them, converts the activations.

#include "cuda/experts/expert_lists.h"

#include <algorithm>

#include "cuda/common/pdl.h"
#include "cuda/common/tensor_view.h"
#include "cuda/experts/activation_conversion.h"
#include "cuda/experts/expert_sort.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

__global__ void __launch_bounds__(kPrepareThreads, 2)
    prepare_kernel(ExpertIds ids, ExpertLists lists, PairSegments segments, Conversion c) {
  extern __shared__ int counts[];
  pdl_wait();
  pdl_trigger();  // not before: the kernel behind copies weights without a wait of its own, which one ahead may write
  const int list_blocks = segments.blocks > 0 ? 1 + segments.blocks : 0;
  const int block = static_cast<int>(blockIdx.x);
  if (block < list_blocks) {
    block == 0 ? write_tables(ids, lists, counts) : write_rows(ids, lists, segments, block - 1, counts);
  } else if (c.factors != nullptr) {
    with_type(c.x.dtype, [&]<class T>(T) { convert_scaled<T>(c, block - list_blocks); });
  } else {
    const int per_row = c.padded_k / 8;
    const std::int64_t first = static_cast<std::int64_t>(block - list_blocks) * kVectorsPerBlock;
    const std::int64_t row = first / per_row;
    const int skipped = static_cast<int>(first - row * per_row) + static_cast<int>(threadIdx.x);
    with_type(c.x.dtype, [&]<class T>(T) {
#pragma unroll
      for (int i = 0; i < kVectorsPerThread; ++i) {
        const int vector = skipped + i * kPrepareThreads;
        convert_vector<T>(c, row + vector / per_row, vector % per_row * 8);
      }
    });
  }
}

void launch_prepare(const ExpertIds& ids, const ExpertLists& lists, const Conversion& conversion, const Stream& stream,
                    std::string_view operation) {
  PairSegments segments;
  std::int64_t counts = 0;
  if (lists.offsets != nullptr) {
    segments = cut_pairs(ids.experts, ids.pairs);
    counts = std::int64_t{ids.experts} * segments.counts();
  }
  if (lists.tiles != nullptr) counts = std::max<std::int64_t>(counts, kTileClassCount * kPrepareThreads);
  const auto shared = static_cast<std::size_t>(4 * counts);
  const DeviceProperties& device = properties(stream.device.index);
  if (shared > 48 * 1024) allow_shared_memory(reinterpret_cast<const void*>(prepare_kernel), shared, operation);
  const bool scaled = conversion.factors != nullptr && conversion.padded_k > 0;
  const std::int64_t work = scaled ? conversion.rows : conversion.rows * (conversion.padded_k / 8);
  const std::int64_t share = scaled ? rows_per_block(conversion) : kVectorsPerBlock;
  const int list_blocks = segments.blocks > 0 ? 1 + segments.blocks : 0;
  const auto blocks = static_cast<unsigned>(list_blocks + (work + share - 1) / share);
  if (blocks == 0) return;
  pdl_launch(prepare_kernel, blocks, kPrepareThreads, shared, device, native(stream), operation, ids, lists, segments,
             conversion);
}

std::int64_t rows_of(const ConstTensor& x) { return x.rank == 2 ? x.dim(0) : x.dim(0) * x.dim(1); }

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

Conversion conversion_of(const ExpertPlan& plan, const ConstTensor& x) {
  Conversion conversion = conversion_of(x, plan.padded_k, plan.activations);
  conversion.order = plan.order;
  conversion.factors = plan.factors;
  return conversion;
}

}  // namespace

void launch_lists(const ExpertIds& ids, const ExpertLists& lists, const Stream& stream, std::string_view operation) {
  launch_prepare(ids, lists, {}, stream, operation);
}

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

ExpertPlan::ExpertPlan(const ConstTensor& x, std::int64_t pairs, std::int64_t experts, int item_rows, int tile_k,
                       ActivationOrder order_, Arena& arena)
    : order(order_), k_tiles((x.dim(x.rank - 1) + tile_k - 1) / tile_k), padded_k(k_tiles * tile_k) {
  const bool records = order == ActivationOrder::kRecords;
  activations = arena.take<std::uint16_t>(rows_of(x) * k_tiles * (records ? kRecordHalves : tile_k));
  factors = records ? arena.take<float>(rows_of(x)) : nullptr;
  lists.item_rows = item_rows;
  lists.offsets = arena.take<std::int32_t>(experts + 1);
  lists.rows = arena.take<std::int32_t>(pairs);
  lists.items = arena.take<ExpertItem>(most_items(experts, pairs, item_rows));
  lists.num_items = arena.take<std::int32_t>(1);
}

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
