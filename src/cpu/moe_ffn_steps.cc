#include <algorithm>
#include <cmath>

#include "cpu/moe_ffn.h"
#include "cpu/routing.h"
#include "cpu/scratch.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

std::int64_t row_floats(const MoeFfnArgs& args) {
  return std::max(arena_floats(args.x.dim(1), args.x.dim(1)), arena_floats(args.router.dim(0)));
}

}  // namespace

FfnSteps::FfnSteps(const MoeFfnArgs& args, std::int64_t scratch_floats_, const Stream& stream, Arena& arena)
    : tokens(args.x.dim(0)),
      slots(args.top_k),
      hidden(args.x.dim(1)),
      inner(args.gate.dim(1)),
      shared_inner(args.shared_gate.defined() ? args.shared_gate.dim(0) : 0),
      x(args.x, false, arena),
      logits(arena.take<float>(tokens * args.router.dim(0))),
      ids(arena.take<std::int32_t>(tokens * slots)),
      weights(arena.take<float>(tokens * slots)),
      lists(args.gate.dim(0), tokens * slots, arena),
      activated(arena.take<float>(tokens * slots * inner)),
      products(arena.take<float>(tokens * slots * hidden)),
      shared_activated(arena.take<float>(tokens * shared_inner)),
      shared_products(arena.take<float>(shared_inner > 0 ? tokens * hidden : 0)),
      rows(arena.take<float>(row_floats(args) * thread_count(stream))),
      scratch(arena.take<float>(scratch_floats_ * thread_count(stream))),
      scratch_floats(scratch_floats_) {}

void FfnSteps::route(const MoeFfnArgs& args, const Stream& stream) {
  const std::int64_t experts = args.router.dim(0);
  // Always from f32 activations: rounding could select another expert.
  multiply_matrix(
      stream, WeightMatrix::of(args.router), false, tokens, [&](std::int64_t t) { return x.row(t, 0); },
      [&](std::int64_t t, std::int64_t n, std::int64_t count, const float* sums) {
        copy_sums(sums, count, logits + t * experts + n);
      },
      scratch);
  parallel_for(stream, tokens, static_cast<double>(experts) * tuning::kSelectNs, [&](std::int64_t t, int worker) {
    route_row({args.score, static_cast<const float*>(args.router_bias.data), args.renormalize}, logits + t * experts,
              experts, slots, ids + t * slots, weights + t * slots, rows + worker * row_floats(args));
  });
  // From the router's numbering to that of the experts that are here.
  const std::int64_t here = args.gate.dim(0);
  for (std::int64_t pair = 0; pair < tokens * slots; ++pair) {
    const std::int64_t id = ids[pair] - args.first_expert;
    ids[pair] = id >= 0 && id < here ? static_cast<std::int32_t>(id) : -1;
    if (ids[pair] < 0) std::fill_n(activated_row(pair), inner, 0.0F);  // rounded with the others, and not read then
  }
  lists.build([&](std::int64_t pair) { return ids[pair]; });
}

void FfnSteps::combine(const MoeFfnArgs& args, const Stream& stream) const {
  const VectorOps& vec = vector_ops();
  const double task_ns = static_cast<double>((slots + 2) * hidden) * tuning::kElementNs;
  parallel_for(stream, tokens, task_ns, [&](std::int64_t t, int worker) {
    float* sum = rows + worker * row_floats(args);
    float* row = sum + arena_floats(hidden);
    std::fill_n(sum, hidden, 0.0F);
    for (std::int64_t pair = t * slots; pair < (t + 1) * slots; ++pair) {
      if (ids[pair] >= 0) vec.axpy(weights[pair], product_row(pair), hidden, sum);
    }
    if (args.shared_gate.defined()) {
      vec.load(args.shared_router.dtype, args.shared_router.data, hidden, row);
      const float logit = vec.dot(x.row(t, 0), row, hidden);
      vec.axpy(1.0F / (1.0F + std::exp(-logit)), shared_product_row(t), hidden, sum);
    }
    vec.store(args.y.dtype, sum, hidden, args.y.row(t));
  });
}

}  // namespace thalweg::cpu
