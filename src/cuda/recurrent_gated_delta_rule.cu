#include <algorithm>
#include <limits>

#include "cuda/gated_delta.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/token_by_token.h"

namespace thalweg::cu {
namespace {

struct Sizes {
  std::int64_t tokens, sequences, hk, hv, k, v;

  explicit Sizes(const GatedDeltaRuleArgs& args)
      : tokens(args.k.dim(1)),
        sequences(args.cu_seqlens.defined() ? args.cu_seqlens.dim(0) - 1 : args.k.dim(0)),
        hk(args.k.dim(2)),
        hv(args.v.dim(2)),
        k(args.k.dim(3)),
        v(args.v.dim(3)) {}
};

TokenByTokenKernel choose(const GatedDeltaRuleArgs& args, std::int64_t k) {
  return args.state_layout == StateLayout::kVK ? token_by_token_kernel<StateLayout::kVK>(k)
                                               : token_by_token_kernel<StateLayout::kKV>(k);
}

// Warps of a block: as many as share the staging of the tokens without leaving multiprocessors idle.
int choose_warps(const Sizes& s, int warp_rows, int multiprocessors) {
  const std::int64_t per_head = s.v / warp_rows;
  int warps = static_cast<int>(std::min<std::int64_t>(kMaxWarps / 2, per_head));
  const auto blocks = [&](int w) { return s.sequences * s.hv * ((per_head + w - 1) / w); };
  while (warps > 1 && blocks(warps) * 10 < std::int64_t{9} * multiprocessors) warps /= 2;
  return warps;
}

}  // namespace

std::string token_by_token_supports(const GatedDeltaRuleArgs& args) {
  const Sizes s(args);
  // 16 rows are the fewest that a block takes.
  const bool fits = s.sequences * s.hv <= std::numeric_limits<std::int32_t>::max() / ((s.v + 7) / 8);
  return fits ? "" : "more than 2^31 pieces of states";
}

void run_token_by_token(const GatedDeltaRuleArgs& args, const Tensor& snapshots, const Stream& stream,
                        std::string_view operation) {
  const Sizes s(args);
  if (s.sequences * s.hv == 0) return;
  const CurrentDevice current(stream, operation);
  const TokenByTokenKernel chosen = choose(args, s.k);
  const int warps = choose_warps(s, chosen.warp_rows, properties(stream.device.index).multiprocessors);
  const int rows = warps * chosen.warp_rows;
  TokenByToken p;
  p.q = elements(args.q);
  p.k = elements(args.k);
  p.v = elements(args.v);
  p.g = elements(args.g);
  p.beta = elements(args.beta);
  p.gates = raw_gates(args.gates);
  p.norm = {args.qk_norm, args.qk_norm_eps, elements(args.q_norm_weight), elements(args.k_norm_weight)};
  p.initial_state = elements(args.initial_state);
  p.final_state = elements(args.final_state);
  p.snapshots = elements(snapshots);
  p.o = elements(args.o);
  p.sequences = {integers(args.cu_seqlens), integers(args.state_indices),
                 args.fault.defined() ? static_cast<std::int32_t*>(args.fault.data) : nullptr, s.tokens,
                 args.initial_state.defined() ? args.initial_state.dim(0)
                                              : (args.final_state.defined() ? args.final_state.dim(0) : 0)};
  p.hk = static_cast<int>(s.hk);
  p.hv = static_cast<int>(s.hv);
  p.v_size = static_cast<int>(s.v);
  p.slices = static_cast<int>((s.v + rows - 1) / rows);
  p.block_tokens = static_cast<int>(std::clamp<std::int64_t>(s.tokens, 1, kBlockTokens));
  p.head_map = args.head_map;
  p.scale = resolve_scale(args.scale, s.k);
  const auto blocks = static_cast<unsigned>(s.sequences * s.hv * p.slices);
  const std::size_t memory = TokenMemory::bytes(p.block_tokens, static_cast<int>(s.k), rows);
  chosen.kernel<<<blocks, static_cast<unsigned>(warps * kWarpSize), memory, native(stream)>>>(p);
  check(cudaGetLastError(), operation);
}

namespace {

std::string supports(const RecurrentGatedDeltaRuleArgs& args, const Stream&) { return token_by_token_supports(args); }

void run(const RecurrentGatedDeltaRuleArgs& args, Workspace, const Stream& stream) {
  run_token_by_token(args, args.snapshots, stream, RecurrentGatedDeltaRuleArgs::kName);
}

constexpr Kernel<RecurrentGatedDeltaRuleArgs> kKernels[] = {
    {"registers", supports, no_workspace<RecurrentGatedDeltaRuleArgs>, run}};

}  // namespace

KernelList<RecurrentGatedDeltaRuleArgs> recurrent_gated_delta_rule_kernels() { return kKernels; }

}  // namespace thalweg::cu
