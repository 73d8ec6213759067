#include "cuda/expert_stream.h"

#include <algorithm>
#include "cuda/device/expert_stream.h"

#include "cuda/expert_lists.h"
#include "cuda/expert_matmul.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

StreamKernel kernel_for(DType type, int item_rows) {
  switch (type) {
    case DType::kF32:
      return stream_kernel<DType::kF32>(item_rows);
    case DType::kF16:
      return stream_kernel<DType::kF16>(item_rows);
    case DType::kBF16:
      return stream_kernel<DType::kBF16>(item_rows);
    case DType::kQ4_0:
      return stream_kernel<DType::kQ4_0>(item_rows);
    case DType::kQ4_1:
      return stream_kernel<DType::kQ4_1>(item_rows);
    case DType::kQ5_0:
      return stream_kernel<DType::kQ5_0>(item_rows);
    case DType::kQ5_1:
      return stream_kernel<DType::kQ5_1>(item_rows);
    case DType::kQ8_0:
      return stream_kernel<DType::kQ8_0>(item_rows);
    case DType::kQ2_K:
      return stream_kernel<DType::kQ2_K>(item_rows);
    case DType::kQ3_K:
      return stream_kernel<DType::kQ3_K>(item_rows);
    case DType::kQ4_K:
      return stream_kernel<DType::kQ4_K>(item_rows);
    case DType::kQ5_K:
      return stream_kernel<DType::kQ5_K>(item_rows);
    case DType::kQ6_K:
      return stream_kernel<DType::kQ6_K>(item_rows);
    case DType::kIQ4_NL:
      return stream_kernel<DType::kIQ4_NL>(item_rows);
    case DType::kIQ4_XS:
      return stream_kernel<DType::kIQ4_XS>(item_rows);
    case DType::kMXFP4:
      return stream_kernel<DType::kMXFP4>(item_rows);
    case DType::kI32:
      break;
  }
  return {};
}

// Rows of an item: enough for the experts' usual numbers of rows.
int item_rows_for(std::int64_t pairs, std::int64_t experts) { return pairs <= 8 * experts ? 16 : 32; }

ExpertPlan plan_for(const ConstTensor& x, const ConstTensor& weight, std::int64_t pairs, std::int64_t experts,
                    void* workspace) {
  const int item_rows = item_rows_for(pairs, experts);
  return ExpertPlan::make(x, pairs, experts, item_rows, kernel_for(weight.dtype, item_rows).slice, workspace);
}

// Strips of a block: where K is short, enough that the wait for the first of its slices is a small part.
int strips_for(std::int64_t padded_k, int slice) {
  constexpr std::int64_t kSteps = 8;
  return static_cast<int>(std::clamp<std::int64_t>(kSteps * slice / std::max<std::int64_t>(padded_k, 1), 1, 4));
}

}  // namespace

std::string stream_supports(const ConstTensor& weight, std::int64_t pairs) {
  const std::int64_t experts = weight.rank == 3 ? weight.dim(0) : 1;
  if (experts > kMostListedExperts) return "takes at most " + std::to_string(kMostListedExperts) + " experts";
  const int item_rows = item_rows_for(pairs, experts);
  if (kernel_for(weight.dtype, item_rows).exact) {
    bool aligned = reinterpret_cast<std::uintptr_t>(weight.data) % 16 == 0;
    for (int i = 0; i + 1 < weight.rank; ++i) {
      aligned &= weight.dim(i) <= 1 || bytes_of(weight.dtype, weight.stride(i)) % 16 == 0;
    }
    if (!aligned) return "takes rows aligned to 16 bytes";
  } else if (const std::string reason = aligned_blocks(weight); !reason.empty()) {
    return reason;
  }
  const std::int64_t blocks =
      most_items(experts, pairs, item_rows) * ((weight.dim(weight.rank - 2) + kStreamRows - 1) / kStreamRows);
  return blocks < std::int64_t{1} << 31 ? "" : "more than 2^31 tiles";
}

std::size_t stream_workspace(const ConstTensor& x, const ConstTensor& weight, std::int64_t pairs) {
  return plan_for(x, weight, pairs, weight.rank == 3 ? weight.dim(0) : 1, nullptr).bytes;
}

void run_stream(const ExpertMatmul& p, const ConstTensor& x, const ConstTensor& weight, Workspace workspace,
                const Stream& stream, std::string_view operation) {
  if (p.ids.pairs == 0 || p.n == 0) return;
  const ExpertPlan plan = plan_for(x, weight, p.ids.pairs, p.ids.experts, workspace.data);
  prepare_experts(plan, p.ids, x, stream, operation);
  const StreamKernel chosen = kernel_for(weight.dtype, plan.lists.item_rows);
  allow_shared_memory(reinterpret_cast<const void*>(chosen.kernel), static_cast<std::size_t>(chosen.shared_bytes),
                      operation);
  const int strips = strips_for(plan.padded_k, chosen.slice);
  const int block_rows = strips * kStreamRows;
  const std::int64_t blocks =
      most_items(p.ids.experts, p.ids.pairs, plan.lists.item_rows) * ((p.n + block_rows - 1) / block_rows);
  launch_early(chosen.kernel, static_cast<unsigned>(blocks), kStreamWarps * kWarpSize,
               static_cast<std::size_t>(chosen.shared_bytes), properties(stream.device.index), native(stream),
               operation, p, plan.lists, static_cast<const std::uint16_t*>(plan.activations),
               static_cast<int>(plan.padded_k), strips);
}

}  // namespace thalweg::cu
