// Host side of moe_ffn's `matvec`.

#include <string>

#include "cuda/common/tensor_view.h"
#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/moe_ffn.h"
#include "cuda/experts/moe_matvec.h"

namespace thalweg::cu {
namespace {

struct MatvecPlan {
  MoeMatvecSizes sizes;
  float* logits;
  uint4* x_blocks;
  uint4* activated;
  std::int32_t* ids;
  float* weights;
  float* shared_products;

  MatvecPlan(const MoeFfnArgs& args, Arena arena)
      : sizes(moe_matvec_sizes(args)),
        logits(arena.take<float>(num_tokens(args) * sizes.logits())),
        x_blocks(arena.take<uint4>(num_tokens(args) * (sizes.hidden / 32) * kFixedBlockVectors)),
        activated(arena.take<uint4>(num_tokens(args) * sizes.inner_blocks() * kFixedBlockVectors)),
        ids(arena.take<std::int32_t>(num_pairs(args))),
        weights(arena.take<float>(num_tokens(args) * sizes.all_slots())),
        shared_products(arena.take<float>(has_shared(args) ? num_tokens(args) * hidden_size(args) : 0)),
        bytes(arena.used()) {}

  std::size_t bytes;
};

// Rows of which shared memory holds a few for each warp.
bool fits_ring(const ConstTensor& weight, const DeviceProperties& device) {
  const std::int64_t k = weight.dim(weight.rank - 1);
  const std::int64_t rows = kWarpSize / row_lanes(static_cast<int>(k / 32));  // at a time
  return rows * bytes_of(weight.dtype, k) <= most_stage_bytes(device);
}

}  // namespace

WeightRows weight_rows(const ConstTensor& weight) {
  WeightRows rows;
  if (!weight.defined()) return rows;
  rows.data = static_cast<const std::uint8_t*>(weight.data);
  rows.expert_bytes = weight.rank == 3 ? bytes_of(weight.dtype, weight.stride(0)) : 0;
  rows.row_bytes = static_cast<int>(bytes_of(weight.dtype, weight.dim(weight.rank - 1)));
  rows.type = weight.dtype;
  return rows;
}

MoeMatvecSizes moe_matvec_sizes(const MoeFfnArgs& args) {
  return {static_cast<int>(num_tokens(args)),
          static_cast<int>(hidden_size(args)),
          static_cast<int>(num_experts(args)),
          args.top_k,
          static_cast<int>(inner_size(args)),
          static_cast<int>(shared_inner_size(args)),
          experts_here(args)};
}

MoeRouter router_inputs(const MoeFfnArgs& args, const MoeMatvecSizes& sizes, float* logits, uint4* x_blocks) {
  MoeRouter router{};
  router.sizes = sizes;
  router.x = elements(args.x);
  router.router = elements(args.router);
  if (has_shared(args)) router.shared_router = elements(args.shared_router);
  router.logits = logits;
  router.x_blocks = x_blocks;
  return router;
}

std::string few_tokens_reason(const MoeFfnArgs& args) {
  if (!routes_by_softmax(args)) return kOtherRouting;
  if (!is_float(args.router.dtype)) return "takes a router of F32, F16 or BF16";
  if (num_experts(args) > kMostMatvecExperts) return "takes at most " + std::to_string(kMostMatvecExperts) + " experts";
  if (args.top_k > kMostMatvecSlots) return "takes at most " + std::to_string(kMostMatvecSlots) + " experts of a token";
  if (has_shared(args) && args.shared_gate.dtype != args.shared_up.dtype) {
    return "takes shared_gate and shared_up of one format";
  }
  if (num_tokens(args) > 65535) return "takes at most 65535 tokens";
  if (num_tokens(args) * (args.top_k * inner_size(args) + shared_inner_size(args)) >= std::int64_t{1} << 31) {
    return "takes fewer than 2^31 inner activations";
  }
  for (const std::int64_t size : {hidden_size(args), inner_size(args), shared_inner_size(args)}) {
    if (size % 32 != 0) return "takes sizes that are multiples of 32";
  }
  return {};
}

std::string moe_matvec_supports(const MoeFfnArgs& args, const Stream& stream) {
  const std::string few = few_tokens_reason(args);
  if (!few.empty()) return few;
  for (const ConstTensor* weight :
       {&args.gate, &args.up, &args.down, &args.shared_gate, &args.shared_up, &args.shared_down}) {
    if (!weight->defined()) continue;
    const std::string reason = is_block_format(weight->dtype) ? aligned_blocks(*weight) : aligned_rows(*weight);
    if (!reason.empty()) return reason;
    const int last = weight->rank - 1;
    if (weight->stride(last - 1) != weight->dim(last)) return "takes matrices whose rows lie together";
    if (!fits_ring(*weight, properties(stream.device.index))) return "has too little shared memory for rows this long";
  }
  return {};
}

std::size_t moe_matvec_workspace(const MoeFfnArgs& args, const Stream&) { return MatvecPlan(args, Arena()).bytes; }

void run_moe_matvec(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DeviceProperties& device = properties(stream.device.index);
  const MatvecPlan plan(args, Arena(workspace));
  MoeMatvec p{};
  p.sizes = plan.sizes;
  p.renormalize = args.renormalize;
  constexpr std::int64_t kFetchedBytes = 16 << 20;
  p.fetch_down = num_pairs(args) * bytes_of(args.down.dtype, inner_size(args) * hidden_size(args)) <= kFetchedBytes;
  p.y = elements(args.y);
  p.gate = weight_rows(args.gate);
  p.up = weight_rows(args.up);
  p.down = weight_rows(args.down);
  p.shared_gate = weight_rows(args.shared_gate);
  p.shared_up = weight_rows(args.shared_up);
  p.shared_down = weight_rows(args.shared_down);
  p.logits = plan.logits;
  p.x_blocks = plan.x_blocks;
  p.activated = plan.activated;
  p.ids = plan.ids;
  p.weights = plan.weights;
  p.shared_products = plan.shared_products;
  launch_moe_router(router_inputs(args, plan.sizes, plan.logits, plan.x_blocks), device, native(stream));
  launch_moe_gate_up(p, device, native(stream));
  launch_moe_down(p, device, native(stream));
}

}  // namespace thalweg::cu
