// moe_ffn on matrix units: activations packed once for gate and up, once for down.

#include <algorithm>
#include <vector>

#include "cpu/moe_ffn.h"
#include "cpu/tile_matmul.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

struct TileFfnMemory {
  FfnSteps steps;
  ExpertGroups groups;
  TileRows x;          // by expert
  TileRows activated;  // by expert
  TileRows shared_x;
  TileRows shared_activated;
  std::size_t bytes;

  TileFfnMemory(const MoeFfnArgs& args, const Stream& stream, Arena arena)
      : steps(args, std::max(product_floats(), kTileScratchFloats), stream, arena),
        groups(steps.lists, arena),
        x(ExpertGroups::at_most(steps.lists), steps.hidden, arena),
        activated(ExpertGroups::at_most(steps.lists), steps.inner, arena),
        shared_x(shared_groups(steps), steps.hidden, arena),
        shared_activated(shared_groups(steps), steps.shared_inner, arena),
        bytes(arena.used()) {}

  static std::int64_t shared_groups(const FfnSteps& steps) {
    return steps.shared_inner > 0 ? tile_groups(steps.tokens) : 0;
  }
};

void run_experts(const MoeFfnArgs& args, const TileFfnMemory& memory, const Stream& stream) {
  const FfnSteps& steps = memory.steps;
  memory.groups.pack(stream, DType::kF32, memory.x,
                     [&](std::int64_t pair) { return steps.x.row(pair / steps.slots, 0); });
  memory.groups.for_each_task(
      stream, args.gate, steps.scratch,
      [&](std::int64_t hit, RowRange range, float* scratch) {
        memory.groups.multiply(
            args.gate, hit, range, memory.x,
            [&](std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
              copy_sums(sums, count, steps.activated_row(pair) + n);
            },
            scratch);
        memory.groups.multiply(
            args.up, hit, range, memory.x,
            [&](std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
              float* gate = steps.activated_row(pair) + n;
              vector_ops().silu_multiply(gate, sums, count, gate);
            },
            scratch);
      },
      steps.scratch_floats);
  memory.groups.pack(stream, DType::kF32, memory.activated,
                     [&](std::int64_t pair) { return steps.activated_row(pair); });
  memory.groups.for_each_task(
      stream, args.down, steps.scratch,
      [&](std::int64_t hit, RowRange range, float* scratch) {
        memory.groups.multiply(
            args.down, hit, range, memory.activated,
            [&](std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
              copy_sums(sums, count, steps.product_row(pair) + n);
            },
            scratch);
      },
      steps.scratch_floats);
}

void run_shared(const MoeFfnArgs& args, const TileFfnMemory& memory, const Stream& stream) {
  const FfnSteps& steps = memory.steps;
  const auto pack = [&](const TileRows& to, auto&& row) {
    to.pack(stream, DType::kF32, tile_groups(steps.tokens), [&](std::int64_t group, std::int64_t i) -> const void* {
      const std::int64_t t = group * kTileSide + i;
      return t < steps.tokens ? row(t) : nullptr;
    });
  };
  pack(memory.shared_x, [&](std::int64_t t) { return steps.x.row(t, 0); });
  multiply_tile_matrix(
      stream, WeightMatrix::of(args.shared_gate), memory.shared_x, steps.tokens,
      [&](std::int64_t t, std::int64_t n, std::int64_t count, const float* sums) {
        copy_sums(sums, count, steps.shared_activated_row(t) + n);
      },
      steps.scratch, steps.scratch_floats);
  multiply_tile_matrix(
      stream, WeightMatrix::of(args.shared_up), memory.shared_x, steps.tokens,
      [&](std::int64_t t, std::int64_t n, std::int64_t count, const float* sums) {
        float* gate = steps.shared_activated_row(t) + n;
        vector_ops().silu_multiply(gate, sums, count, gate);
      },
      steps.scratch, steps.scratch_floats);
  pack(memory.shared_activated, [&](std::int64_t t) { return steps.shared_activated_row(t); });
  multiply_tile_matrix(
      stream, WeightMatrix::of(args.shared_down), memory.shared_activated, steps.tokens,
      [&](std::int64_t t, std::int64_t n, std::int64_t count, const float* sums) {
        copy_sums(sums, count, steps.shared_product_row(t) + n);
      },
      steps.scratch, steps.scratch_floats);
}

}  // namespace

std::string tile_ffn_reason(const MoeFfnArgs& args, const Stream&) {
  std::vector<DType> weights = {args.gate.dtype, args.up.dtype, args.down.dtype};
  if (args.shared_gate.defined()) {
    for (const ConstTensor* weight : {&args.shared_gate, &args.shared_up, &args.shared_down}) {
      weights.push_back(weight->dtype);
    }
  }
  for (const DType weight : weights) {
    std::string reason = tile_reason(args.precision, weight);
    if (!reason.empty()) return reason;
  }
  return {};
}

std::size_t tile_ffn_workspace(const MoeFfnArgs& args, const Stream& stream) {
  return TileFfnMemory(args, stream, Arena()).bytes;
}

void run_tile_ffn(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  TileFfnMemory memory(args, stream, Arena(workspace));
  memory.steps.x.prepare(stream);
  memory.steps.route(args, stream);
  memory.groups.build();
  run_experts(args, memory, stream);
  if (args.shared_gate.defined()) run_shared(args, memory, stream);
  memory.steps.combine(args, stream);
}

double tile_ffn_cost(const MoeFfnArgs& args, const Stream& stream) {
  const auto cost = [&](const MoeFfnArgs& a) {
    const std::int64_t tokens = a.x.dim(0);
    const double experts = tuning::expected_experts(a.router.dim(0), tokens, a.top_k);
    const auto matrix = static_cast<double>(a.gate.dim(1) * a.gate.dim(2));
    double us = 3.0 * tile_product_us(experts, static_cast<double>(tokens * a.top_k), matrix, stream);
    if (a.shared_gate.defined()) {
      const auto shared = static_cast<double>(a.shared_gate.size());
      us += 3.0 * tile_product_us(1.0, static_cast<double>(tokens), shared, stream);
    }
    return us;
  };
  return hinted_cost(args, stream, cost, [&](const MoeFfnArgs& a) { return ffn_cost(a, stream); });
}

}  // namespace thalweg::cpu
