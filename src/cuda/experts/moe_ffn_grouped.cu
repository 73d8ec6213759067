// Host side of moe_ffn's `grouped` (grouped.h).

#include <algorithm>
#include <cmath>
#include <string>

#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/grouped.h"
#include "cuda/experts/moe_ffn.h"
#include "cuda/row_hint.h"
#include "cuda/tuning.h"

namespace thalweg::cu {
namespace {

namespace costs = tuning::experts::moe_ffn;

std::int64_t shared_items(const MoeFfnArgs& args, std::int64_t tokens, int item_tokens) {
  return has_shared(args) ? (tokens + item_tokens - 1) / item_tokens : 0;
}

struct GroupedPlan {
  float* logits;            // [T,E]
  float* weights;           // [T,S]
  std::int32_t* ids;        // [T,S]
  std::uint8_t* records;    // [T,D / 256]
  float* activated;         // [T S,I]
  float* shared_activated;  // [T,J]
  Bf16* products;           // [T S,D]
  Bf16* shared_products;    // [T,D]
  GroupedItems items;
  std::int64_t most_items;
  std::size_t bytes;

  GroupedPlan(const MoeFfnArgs& args, const Stream& stream, Arena arena)
      : logits(arena.take<float>(num_tokens(args) * num_experts(args))),
        weights(arena.take<float>(num_pairs(args))),
        ids(arena.take<std::int32_t>(num_pairs(args))),
        records(arena.take<std::uint8_t>(num_tokens(args) * (hidden_size(args) / kFixedTileK) * kFixedRecordBytes)),
        activated(arena.take<float>(num_pairs(args) * inner_size(args))),
        shared_activated(arena.take<float>(num_tokens(args) * shared_inner_size(args))),
        products(arena.take<Bf16>(num_pairs(args) * hidden_size(args))),
        shared_products(arena.take<Bf16>(has_shared(args) ? num_tokens(args) * hidden_size(args) : 0)) {
    items.item_tokens = planned_rows(num_tokens(args), stream) > 4 ? kGroupedItemTokens : 4;
    // Every expert that is hit may have one item that is not full.
    most_items = shared_items(args, num_tokens(args), items.item_tokens) +
                 std::min(num_experts_here(args), num_pairs(args)) + num_pairs(args) / items.item_tokens;
    items.items = arena.take<ExpertItem>(most_items);
    items.count = arena.take<std::int32_t>(1);
    items.pairs = arena.take<std::int32_t>(num_pairs(args));
    bytes = arena.used();
  }
};

// How blocks divide the rows of `first` (and `second`), for `items` items on average. Sums depend on k_warps alone.
GroupedSide side_of(const ConstTensor& first, const ConstTensor& second, double items, const GroupedItems& of,
                    const DeviceProperties& device) {
  GroupedSide side{};
  if (!first.defined()) return side;
  side.first = weight_rows(first);
  side.second = weight_rows(second);
  side.experts = first.rank == 3 ? static_cast<int>(first.dim(0)) : 1;
  side.n = static_cast<int>(first.dim(first.rank - 2));
  side.k_tiles = static_cast<int>(first.dim(first.rank - 1) / kFixedTileK);
  side.stage_bytes = grouped_stage_bytes(first.dtype);
  // Two blocks share a multiprocessor.
  constexpr int kReserved = 2048;
  const int memory = device.shared_bytes / 2 - kReserved - of.item_tokens * grouped_x_pitch(side.k_tiles);
  const int warps = std::clamp(memory / (2 * side.stage_bytes), 1, kGroupedWarps);
  side.stages = std::clamp(memory / (warps * side.stage_bytes), 2, kMostGroupedStages);
  const double full = costs::kGroupedBlocksPerMultiprocessor * device.multiprocessors;
  side.k_warps = 1;
  side.groups = 1;
  side.units = warps;
  while (2 * side.k_warps <= std::min(warps, side.k_tiles) && items * side.blocks() < full) {
    side.k_warps *= 2;
    side.units = warps / side.k_warps;
  }
  while (side.k_warps == 1 && side.groups * side.k_tiles < costs::kGroupedSteps) {
    side.groups *= 2;
    if (items * side.blocks() >= full) continue;
    side.groups /= 2;
    break;
  }
  return side;
}

}  // namespace

std::string moe_grouped_supports(const MoeFfnArgs& args, const Stream& stream) {
  if (!routes_by_softmax(args)) return kOtherRouting;
  if (!is_float(args.router.dtype)) return "takes a router of F32, F16 or BF16";
  if (num_experts(args) > kMostGroupedExperts) {
    return "takes at most " + std::to_string(kMostGroupedExperts) + " experts";
  }
  if (num_tokens(args) > kMostGroupedTokens && stream.rows != RowHint::kFew) {
    return "takes at most " + std::to_string(kMostGroupedTokens) + " tokens";
  }
  if (args.top_k > kMostGroupedSlots) {
    return "takes at most " + std::to_string(kMostGroupedSlots) + " experts of a token";
  }
  for (const std::int64_t size : {hidden_size(args), inner_size(args), shared_inner_size(args)}) {
    if (size % kFixedTileK != 0) return "takes sizes that are multiples of " + std::to_string(kFixedTileK);
  }
  if (args.gate.dtype != args.up.dtype || args.shared_gate.dtype != args.shared_up.dtype) {
    return "takes gate and up of one format";
  }
  for (const ConstTensor* weight :
       {&args.gate, &args.up, &args.down, &args.shared_gate, &args.shared_up, &args.shared_down}) {
    if (!weight->defined()) continue;
    std::string reason(grouped_refusal(weight->dtype));
    if (reason.empty()) reason = weight->dtype == DType::kQ6_K ? aligned_blocks(*weight) : aligned_rows(*weight);
    if (!reason.empty()) return reason;
    const int last = weight->rank - 1;
    if (weight->stride(last - 1) != weight->dim(last)) return "takes matrices whose rows lie together";
  }
  const int columns = static_cast<int>(std::max({hidden_size(args), inner_size(args), shared_inner_size(args)}));
  const int x = kGroupedItemTokens * grouped_x_pitch(columns / kFixedTileK);
  constexpr int kRing = 2 * 4352;  // of one warp, in the largest format
  if (x + kRing > properties(stream.device.index).shared_bytes / 2) return "has too little shared memory";
  return {};
}

namespace {

// Of kMostGroupedTokens at most.
MoeFfnArgs some_tokens(const MoeFfnArgs& args, std::int64_t first) {
  MoeFfnArgs some = args;
  const std::int64_t count = std::min<std::int64_t>(num_tokens(args) - first, kMostGroupedTokens);
  some.x = narrow(args.x, 0, first, count);
  some.y = narrow(args.y, 0, first, count);
  return some;
}

void run_some_tokens(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  const DeviceProperties& device = properties(stream.device.index);
  const cudaStream_t queue = native(stream);
  const GroupedPlan plan(args, stream, Arena(workspace));

  GroupedRouter router{};
  router.x = elements(args.x);
  router.router = elements(args.router);
  router.logits = plan.logits;
  router.records = plan.records;
  router.tokens = static_cast<int>(num_tokens(args));
  router.experts = static_cast<int>(num_experts(args));
  router.k_tiles = static_cast<int>(hidden_size(args) / kFixedTileK);
  launch_grouped_router(router, device, queue, args.kName);

  GroupedChoice choice{};
  choice.logits = plan.logits;
  choice.tokens = router.tokens;
  choice.experts = router.experts;
  choice.weights = plan.weights;
  choice.ids = plan.ids;
  choice.here = experts_here(args);
  choice.slots = args.top_k;
  choice.renormalize = args.renormalize;
  choice.shared = has_shared(args);
  choice.items = plan.items;
  launch_grouped_choice(choice, device, queue, args.kName);

  const std::int64_t planned = planned_rows(num_tokens(args), stream);
  const auto experts = static_cast<double>(num_experts(args));
  const double hit = static_cast<double>(num_experts_here(args)) *
                     (1.0 - std::pow(1.0 - 1.0 / experts, static_cast<double>(planned * args.top_k)));
  const std::int64_t shared = shared_items(args, num_tokens(args), plan.items.item_tokens);
  const std::int64_t planned_shared = shared_items(args, planned, plan.items.item_tokens);
  GroupedProduct p{};
  p.items = plan.items;
  p.slots = args.top_k;
  p.shared_items = static_cast<int>(shared);
  const auto product = [&](bool down, const ConstTensor& first, const ConstTensor& second,
                           const ConstTensor& shared_first, const ConstTensor& shared_second) {
    p.experts = side_of(first, second, hit, plan.items, device);
    // In the launch of the experts it is one more of them.
    const bool together = shared_first.defined() && shared_first.dtype == first.dtype;
    p.shared =
        side_of(shared_first, shared_second, together ? hit : static_cast<double>(planned_shared), plan.items, device);
    launch_grouped_product(p, down, plan.most_items, device, queue, args.kName);
  };
  p.x = p.shared_x = plan.records;
  p.y = plan.activated;
  p.shared_y = plan.shared_activated;
  product(false, args.gate, args.up, args.shared_gate, args.shared_up);
  p.x = plan.activated;
  p.shared_x = plan.shared_activated;
  p.y = plan.products;
  p.shared_y = plan.shared_products;
  product(true, args.down, {}, args.shared_down, {});
  run_combine(args, plan.products, plan.weights, plan.ids, plan.shared_products, device, queue);
}

}  // namespace

std::size_t moe_grouped_workspace(const MoeFfnArgs& args, const Stream& stream) {
  return GroupedPlan(some_tokens(args, 0), stream, Arena()).bytes;
}

void run_moe_grouped(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  for (std::int64_t first = 0; first < num_tokens(args); first += kMostGroupedTokens) {
    run_some_tokens(some_tokens(args, first), workspace, stream);
  }
}

std::string moe_grouped_remark(const MoeFfnArgs&) { return "rounds activations to 15 bits of the largest of 256"; }

}  // namespace thalweg::cu
