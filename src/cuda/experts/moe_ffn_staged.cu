// Host side of moe_ffn's `staged`.

#include <algorithm>
#include <string>

#include "cuda/common/tensor_view.h"
#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/moe_ffn.h"
#include "cuda/experts/moe_staged.h"

namespace thalweg::cu {
namespace {

struct StagedPlan {
  MoeMatvecSizes sizes;
  float* logits;
  uint4* x_blocks;
  float* activated;
  std::size_t bytes;

  StagedPlan(const MoeFfnArgs& args, Arena arena)
      : sizes(moe_matvec_sizes(args)),
        logits(arena.take<float>(num_tokens(args) * sizes.logits())),
        x_blocks(arena.take<uint4>(num_tokens(args) * (sizes.hidden / 32) * kFixedBlockVectors)),
        activated(arena.take<float>(num_tokens(args) * 32 * sizes.inner_blocks())),
        bytes(arena.used()) {}
};

// A shared expert has the format of the others or one of two more.
bool has_kernel(const ConstTensor& shared, const ConstTensor& experts) {
  return !shared.defined() || shared.dtype == experts.dtype || shared.dtype == kSharedType ||
         shared.dtype == kOtherSharedType;
}

// Whether `rows` rows of any of its matrices, from a multiple of `rows` on, can be one copy.
bool rows_are_copies(const ConstTensor& weight, int rows) {
  const int last = weight.rank - 1;
  if (weight.stride(last - 1) != weight.dim(last)) return false;
  const std::int64_t matrix_bytes = weight.rank == 3 ? bytes_of(weight.dtype, weight.stride(0)) : 0;
  return address_alignment(weight) % 16 == 0 && matrix_bytes % 16 == 0 &&
         rows * bytes_of(weight.dtype, weight.dim(last)) % 16 == 0;
}

int row_bytes(const ConstTensor& weight) {
  return weight.defined() ? static_cast<int>(bytes_of(weight.dtype, weight.dim(weight.rank - 1))) : 0;
}

// Shared memory of a warp: its rows of gate and up.
int gate_up_stage(const MoeFfnArgs& args) {
  return 2 * kStagedOutputs * std::max(row_bytes(args.gate), row_bytes(args.shared_gate));
}
int gate_up_bytes(const MoeFfnArgs& args) { return kStagedGateUpWarps * gate_up_stage(args); }

int down_bytes(const MoeFfnArgs& args) {
  const MoeMatvecSizes sizes = moe_matvec_sizes(args);
  return kStagedDownRows * (sizes.slots * row_bytes(args.down) + row_bytes(args.shared_down)) +
         sizes.inner_blocks() * static_cast<int>(sizeof(FixedBlock)) + sizes.all_slots() * kStagedDownRows * 4;
}

void allow(const void* kernel, int bytes) {
  constexpr int kUsual = 46 * 1024;  // beside static shared memory
  if (bytes > kUsual) allow_shared_memory(kernel, static_cast<std::size_t>(bytes), MoeFfnArgs::kName);
}

}  // namespace

std::string moe_staged_supports(const MoeFfnArgs& args, const Stream& stream) {
  const DeviceProperties& device = properties(stream.device.index);
  std::string reason = sm90_reason(device);
  if (reason.empty()) reason = few_tokens_reason(args);
  if (!reason.empty()) return reason;
  if (num_experts(args) > kMostStagedExperts) return "takes at most " + std::to_string(kMostStagedExperts) + " experts";
  for (const ConstTensor* weight : {&args.gate, &args.up, &args.down}) {
    if (!is_block_format(weight->dtype)) return "takes experts in a block format";
  }
  if (args.gate.dtype != args.up.dtype) return "takes gate and up of one format";
  if (!has_kernel(args.shared_gate, args.gate) || !has_kernel(args.shared_down, args.down)) {
    return "takes a shared expert of the experts' formats, Q8_0 or Q6_K";
  }
  for (const ConstTensor* weight : {&args.gate, &args.up, &args.shared_gate, &args.shared_up}) {
    if (weight->defined() && !rows_are_copies(*weight, kStageOutputs)) {
      return "takes rows of gate and up of which two are a multiple of 16 bytes, all together";
    }
  }
  for (const ConstTensor* weight : {&args.down, &args.shared_down}) {
    if (weight->defined() && !rows_are_copies(*weight, kStagedDownRows)) {
      return "takes rows of down of which eight are a multiple of 16 bytes, all together";
    }
  }
  const int most = device.shared_bytes / 2 - 2048;
  if (gate_up_bytes(args) > most || down_bytes(args) > most) return "has too little shared memory for rows this long";
  return {};
}

std::size_t moe_staged_workspace(const MoeFfnArgs& args, const Stream&) { return StagedPlan(args, Arena()).bytes; }

void run_moe_staged(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DeviceProperties& device = properties(stream.device.index);
  const StagedPlan plan(args, Arena(workspace));
  const MoeMatvecSizes& sizes = plan.sizes;
  launch_moe_router(router_inputs(args, sizes, plan.logits, plan.x_blocks), device, native(stream));

  StagedGateUp first{};
  first.sizes = sizes;
  first.shared_blocks = sizes.tokens * sizes.shared_inner / kStagedGateUpRows;
  first.stage_bytes = gate_up_stage(args);
  first.shared_type = args.shared_gate.dtype;
  first.logits = plan.logits;
  first.x_blocks = plan.x_blocks;
  first.activated = plan.activated;
  first.gate = weight_rows(args.gate);
  first.up = weight_rows(args.up);
  first.shared_gate = weight_rows(args.shared_gate);
  first.shared_up = weight_rows(args.shared_up);
  const auto gate_up = sm90::staged_moe_kernels(args.gate.dtype).gate_up;
  const int blocks = first.shared_blocks + sizes.tokens * sizes.slots * sizes.inner / kStagedGateUpRows;
  allow(reinterpret_cast<const void*>(gate_up), gate_up_bytes(args));
  pdl_launch(gate_up, static_cast<unsigned>(blocks), kStagedGateUpThreads,
             static_cast<std::size_t>(gate_up_bytes(args)), device, native(stream), MoeFfnArgs::kName, first);

  StagedDown second{};
  second.sizes = sizes;
  second.renormalize = args.renormalize;
  second.stage_bytes = kStagedDownRows * row_bytes(args.down);
  second.shared_stage_bytes = kStagedDownRows * row_bytes(args.shared_down);
  second.shared_type = args.shared_down.dtype;
  second.logits = plan.logits;
  second.activated = plan.activated;
  second.down = weight_rows(args.down);
  second.shared_down = weight_rows(args.shared_down);
  second.y = compact<1>(args.y);
  const auto down = sm90::staged_moe_kernels(args.down.dtype).down;
  const int warps = std::min(sizes.all_slots(), kStagedDownWarps);
  const dim3 grid(static_cast<unsigned>(sizes.hidden / kStagedDownRows), static_cast<unsigned>(sizes.tokens));
  allow(reinterpret_cast<const void*>(down), down_bytes(args));
  pdl_launch(down, grid, static_cast<unsigned>(warps * kWarpSize), static_cast<std::size_t>(down_bytes(args)), device,
             native(stream), MoeFfnArgs::kName, second);
}

}  // namespace thalweg::cu
