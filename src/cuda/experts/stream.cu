#include "cuda/experts/stream.h"

#include <algorithm>

#include "cuda/experts/expert_lists.h"
#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/formats/dispatch.h"
#include "cuda/experts/stream_kernel.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

StreamKernel kernel_of(DType type, int item_rows, bool aligned) {
  return dispatch_format(type, [&]<DType kType>() { return stream_kernel<kType>(item_rows, aligned); });
}

// Rows of a work item: enough for the usual number of rows of an expert.
int item_rows_for(std::int64_t pairs, std::int64_t experts) {
  return pairs <= 3 * experts ? 8 : (pairs <= 10 * experts ? 16 : 32);
}

std::int64_t experts_of(const ConstTensor& weight) { return weight.rank == 3 ? weight.dim(0) : 1; }

StreamKernel kernel_for(const ConstTensor& weight, std::int64_t pairs) {
  return kernel_of(weight.dtype, item_rows_for(pairs, experts_of(weight)), aligned_rows(weight).empty());
}

// Row tiles of a block: more where K is short, so that the latency of the first K tile is a small fraction.
int row_tiles_for(const StreamPlan& plan) {
  const std::int64_t steps = plan.kernel.codes ? 4 : 8;
  return static_cast<int>(std::clamp<std::int64_t>(steps / std::max<std::int64_t>(plan.experts.k_tiles, 1), 1, 4));
}

}  // namespace

std::string stream_supports(const ConstTensor& weight, std::int64_t pairs) {
  const std::int64_t experts = experts_of(weight);
  if (experts > kMostListedExperts) return "takes at most " + std::to_string(kMostListedExperts) + " experts";
  if (const std::string reason = aligned_blocks(weight); !reason.empty()) return reason;
  const StreamKernel kernel = kernel_for(weight, pairs);
  if (kernel.kernel == nullptr) return aligned_rows(weight);
  const std::int64_t blocks =
      most_items(experts, pairs, kernel.item_rows) * ((weight.dim(weight.rank - 2) + kernel.rows - 1) / kernel.rows);
  return blocks < std::int64_t{1} << 31 ? "" : "more than 2^31 tiles";
}

std::string stream_rounding(const ConstTensor& weight, std::int64_t pairs) {
  return kernel_for(weight, pairs).codes ? "rounds activations to f16, each row scaled"
                                         : "rounds activations and weights to bf16";
}

StreamPlan::StreamPlan(const ConstTensor& x, const ConstTensor& weight, std::int64_t pairs, Arena& arena)
    : kernel(kernel_for(weight, pairs)),
      experts(x, pairs, experts_of(weight), kernel.item_rows, kernel.tile_k,
              kernel.codes ? ActivationOrder::kRecords : ActivationOrder::kRows, arena) {}

void launch_stream(const StreamPlan& plan, const ExpertMatmul& p, const ConstTensor& weight, const Stream& stream,
                   std::string_view operation, const SecondProduct& second) {
  // Products that share a plan may differ in the alignment of their weights.
  const StreamKernel kernel = kernel_of(weight.dtype, plan.kernel.item_rows, aligned_rows(weight).empty());
  const auto shared_bytes = static_cast<std::size_t>(kernel.shared_bytes);
  allow_shared_memory(reinterpret_cast<const void*>(kernel.kernel), shared_bytes, operation);
  const int row_tiles = row_tiles_for(plan);
  const int block_rows = row_tiles * kernel.rows;
  const std::int64_t blocks =
      most_items(p.ids.experts, p.ids.pairs, kernel.item_rows) * ((p.n + block_rows - 1) / block_rows);
  const dim3 grid(static_cast<unsigned>(blocks), second.weights != nullptr ? 2 : 1);
  pdl_launch(kernel.kernel, grid, kStreamWarps * kWarpSize, shared_bytes, properties(stream.device.index),
             native(stream), operation, p, plan.experts.lists,
             StreamActivations{plan.experts.activations, plan.experts.factors, static_cast<int>(plan.experts.k_tiles)},
             row_tiles, second);
}

std::size_t stream_workspace(const ConstTensor& x, const ConstTensor& weight, std::int64_t pairs) {
  Arena arena;
  const StreamPlan plan(x, weight, pairs, arena);
  return arena.used();
}

void run_stream(const ExpertMatmul& p, const ConstTensor& x, const ConstTensor& weight, Workspace workspace,
                const Stream& stream, std::string_view operation) {
  if (p.ids.pairs == 0 || p.n == 0) return;
  Arena arena(workspace);
  const StreamPlan plan(x, weight, p.ids.pairs, arena);
  prepare_experts(plan.experts, p.ids, x, stream, operation);
  launch_stream(plan, p, weight, stream, operation);
}

}  // namespace thalweg::cu
