#include "cpu/routing.h"

#include <cmath>
#include <limits>

#include "cpu/expert_matmul.h"
#include "cpu/moe.h"
#include "cpu/scratch.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {

namespace {

void minus_infinity_for_nan(float* logits, std::int64_t experts) {
  for (std::int64_t e = 0; e < experts; ++e) {
    if (std::isnan(logits[e])) logits[e] = -std::numeric_limits<float>::infinity();
  }
}

// Insertion into a short sorted list: most experts rank below its last entry.
void choose_largest(const float* scores, std::int64_t experts, std::int64_t top_k, std::int32_t* ids) {
  std::int64_t kept = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    if (kept == top_k && !(scores[e] > scores[ids[kept - 1]])) continue;
    std::int64_t rank = kept < top_k ? kept++ : kept - 1;
    for (; rank > 0 && scores[e] > scores[ids[rank - 1]]; --rank) ids[rank] = ids[rank - 1];
    ids[rank] = static_cast<std::int32_t>(e);
  }
}

void route_by_softmax(float* logits, std::int64_t experts, std::int64_t top_k, bool renormalize, std::int32_t* ids,
                      float* weights, float* probabilities) {
  minus_infinity_for_nan(logits, experts);
  choose_largest(logits, experts, top_k, ids);
  const float sum = vector_ops().exp_minus_max(logits, experts, probabilities);
  float total = 0.0F;
  for (std::int64_t s = 0; s < top_k; ++s) total += probabilities[ids[s]];
  for (std::int64_t s = 0; s < top_k; ++s) weights[s] = probabilities[ids[s]] / (renormalize ? total : sum);
}

}  // namespace

void route_row(const RoutingRule& rule, float* logits, std::int64_t experts, std::int64_t top_k, std::int32_t* ids,
               float* weights, float* scores) {
  if (rule.score == RouterScore::kSoftmax && rule.bias == nullptr) {
    return route_by_softmax(logits, experts, top_k, rule.renormalize, ids, weights, scores);
  }
  minus_infinity_for_nan(logits, experts);
  if (rule.score == RouterScore::kSigmoid) {
    for (std::int64_t e = 0; e < experts; ++e) scores[e] = 1.0F / (1.0F + std::exp(-logits[e]));
  } else {
    const float sum = vector_ops().exp_minus_max(logits, experts, scores);
    for (std::int64_t e = 0; e < experts; ++e) scores[e] /= sum;
  }
  if (rule.bias != nullptr) {
    for (std::int64_t e = 0; e < experts; ++e) logits[e] = scores[e] + rule.bias[e];
  }
  choose_largest(logits, experts, top_k, ids);
  float total = 0.0F;
  for (std::int64_t s = 0; s < top_k; ++s) total += weights[s] = scores[ids[s]];
  if (!rule.renormalize || !(total > 0.0F)) return;
  for (std::int64_t s = 0; s < top_k; ++s) weights[s] /= total;
}

namespace {

std::int64_t route_floats(std::int64_t experts) { return arena_floats(experts, experts); }

std::size_t route_workspace(const RouteTopKArgs& args, const Stream& stream) {
  return worker_bytes(route_floats(args.router_logits.dim(1)), stream);
}

void run_route(const RouteTopKArgs& args, Workspace workspace, const Stream& stream) {
  const std::int64_t experts = args.router_logits.dim(1);
  const double task_ns = static_cast<double>(experts) * tuning::kSelectNs;
  parallel_for(stream, args.router_logits.dim(0), task_ns, [&](std::int64_t t, int worker) {
    Arena scratch = worker_arena(workspace, route_floats(experts), worker);
    float* logits = scratch.take<float>(experts);
    float* scores = scratch.take<float>(experts);
    vector_ops().load(args.router_logits.dtype, args.router_logits.row(t), experts, logits);
    route_row({args.score, static_cast<const float*>(args.bias.data), args.renormalize}, logits, experts,
              args.expert_ids.dim(1), static_cast<std::int32_t*>(args.expert_ids.row(t)),
              static_cast<float*>(args.expert_weights.row(t)), scores);
  });
}

constexpr Kernel<RouteTopKArgs> kRoute[] = {{"rows", always_supported<RouteTopKArgs>, route_workspace, run_route}};

void run_expert_rows(const ExpertRowsArgs& args, Workspace, const Stream&) {
  ExpertRows::fill_expert_rows(args.expert_offsets.dim(0) - 1, args.rows.dim(0), PairIds(args.expert_ids),
                               static_cast<std::int32_t*>(args.expert_offsets.data),
                               static_cast<std::int32_t*>(args.rows.data));
}

constexpr Kernel<ExpertRowsArgs> kExpertRows[] = {
    {"counting", always_supported<ExpertRowsArgs>, no_workspace<ExpertRowsArgs>, run_expert_rows}};

}  // namespace

KernelList<RouteTopKArgs> route_top_k_kernels() { return kRoute; }
KernelList<ExpertRowsArgs> expert_rows_kernels() { return kExpertRows; }

}  // namespace thalweg::cpu
