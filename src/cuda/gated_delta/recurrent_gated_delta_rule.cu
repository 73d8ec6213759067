#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "cuda/gated_delta/decode.h"
#include "cuda/gated_delta/gated_delta.h"
#include "cuda/gated_delta/token_by_token.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/row_hint.h"
#include "cuda/tuning.h"

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

// Warps of a block: as many as can share the tokens in shared memory without leaving multiprocessors idle.
int choose_warps(const Sizes& s, int warp_rows, int multiprocessors) {
  const std::int64_t head_warps = s.v / warp_rows;
  int warps = static_cast<int>(std::min<std::int64_t>(kMaxWarps / 2, head_warps));
  const auto blocks = [&](int w) { return s.sequences * s.hv * ((head_warps + w - 1) / w); };
  constexpr std::int64_t kNumerator = tuning::gated_delta::kBusyNumerator;
  while (warps > 1 && blocks(warps) * tuning::gated_delta::kBusyDenominator < kNumerator * multiprocessors) warps /= 2;
  return warps;
}

TokenByToken parameters(const GatedDeltaRuleArgs& args, const StatesBetween& states, const Sizes& s) {
  TokenByToken p;
  p.q = elements(args.q);
  p.k = elements(args.k);
  p.v = elements(args.v);
  p.g = elements(args.g);
  p.beta = elements(args.beta);
  p.gates = gate_views(args.gates);
  p.norm = {args.qk_norm, args.qk_norm_eps, elements(args.q_norm_weight), elements(args.k_norm_weight)};
  p.initial_state = elements(args.initial_state);
  p.final_state = elements(args.final_state);
  p.snapshots = elements(states.snapshots);
  p.checkpoints = elements(states.checkpoints);
  p.checkpoint_tokens = states.checkpoint_tokens;
  p.checkpoint_count = states.checkpoints.dim(1);
  p.o = elements(args.o);
  p.sequences = {integers(args.cu_seqlens), integers(args.state_indices),
                 args.fault.defined() ? static_cast<std::int32_t*>(args.fault.data) : nullptr, s.tokens,
                 args.initial_state.defined() ? args.initial_state.dim(0)
                                              : (args.final_state.defined() ? args.final_state.dim(0) : 0)};
  p.hk = static_cast<int>(s.hk);
  p.hv = static_cast<int>(s.hv);
  p.ratio = static_cast<int>(s.hv / s.hk);
  p.v_size = static_cast<int>(s.v);
  p.head_map = args.head_map;
  p.scale = resolve_scale(args.scale, s.k);
  return p;
}

}  // namespace

std::string token_by_token_supports(const GatedDeltaRuleArgs& args) {
  const Sizes s(args);
  // A block has 8 rows at least.
  const bool fits = s.sequences * s.hv <= std::numeric_limits<std::int32_t>::max() / ((s.v + 7) / 8);
  return fits ? "" : "needs fewer than 2^31 blocks";
}

void run_token_by_token(const GatedDeltaRuleArgs& args, const StatesBetween& states, const Stream& stream,
                        std::string_view operation) {
  const Sizes s(args);
  if (s.sequences * s.hv == 0) return;
  const CurrentDevice current(stream, operation);
  const TokenByTokenKernel chosen = choose(args, s.k);
  const int warps = choose_warps(s, chosen.warp_rows, properties(stream.device.index).multiprocessors);
  const int rows = warps * chosen.warp_rows;
  TokenByToken p = parameters(args, states, s);
  p.row_blocks = static_cast<int>((s.v + rows - 1) / rows);
  p.block_tokens = static_cast<int>(std::clamp<std::int64_t>(s.tokens, 1, kBlockTokens));
  const auto blocks = static_cast<unsigned>(s.sequences * s.hv * p.row_blocks);
  const std::size_t memory = TokenMemory::bytes(p.block_tokens, static_cast<int>(s.k), rows);
  chosen.kernel<<<blocks, static_cast<unsigned>(warps * kWarpSize), memory, native(stream)>>>(p);
  check(cudaGetLastError(), operation);
}

namespace {

// ---- decode_one, decode_together, decode: up to 8 tokens of each sequence

constexpr std::int64_t kMaxGrid = 65535;  // blocks along y and z

// The dtype of all states of the call, if they have the same.
std::optional<DType> state_type(const RecurrentGatedDeltaRuleArgs& args) {
  std::optional<DType> type;
  for (const ConstTensor& state : {args.initial_state, ConstTensor(args.final_state), ConstTensor(args.snapshots)}) {
    if (!state.defined()) continue;
    if (type && *type != state.dtype) return std::nullopt;
    type = state.dtype;
  }
  return type ? type : DType::kF32;
}

std::string decode_supports(const RecurrentGatedDeltaRuleArgs& args, const Stream&) {
  const Sizes s(args);
  if (s.k != 64 && s.k != 128) return "needs K to be 64 or 128, not " + std::to_string(s.k);
  if (s.tokens < 1 || s.tokens > kTogether) return "needs 1 to 8 tokens, not " + std::to_string(s.tokens);
  if (args.cu_seqlens.defined()) return "does not take cu_seqlens";
  if (args.state_layout != StateLayout::kVK) return "needs states [V,K]";
  if (!state_type(args)) return "needs snapshots to have the dtype of the states";
  for (const ConstTensor& tensor :
       {args.q, args.k, args.initial_state, ConstTensor(args.final_state), ConstTensor(args.snapshots)}) {
    if (tensor.defined() && !elements(tensor).fours) return "needs rows aligned to four elements";
  }
  for (const ConstTensor& tensor :
       {args.q, args.k, args.v, args.g, args.beta, args.gates.a, args.gates.b, args.q_norm_weight, args.k_norm_weight,
        args.initial_state, ConstTensor(args.final_state), ConstTensor(args.snapshots), ConstTensor(args.o)}) {
    if (!is_compact(tensor)) return "needs strides below 2^31 elements";
  }
  if (s.sequences > kMaxGrid || s.hv > kMaxGrid) return "needs at most 65535 sequences and heads";
  return {};
}

Decode decode_parameters(const RecurrentGatedDeltaRuleArgs& args, const Sizes& s) {
  Decode p;
  p.initial_state = compact<3>(args.initial_state);
  p.q = compact<3>(args.q);
  p.k = compact<3>(args.k);
  p.v = compact<3>(args.v);
  p.gates = compact_gate_views(args.gates);
  if (args.g.defined()) p.gates.a = compact<2>(args.g), p.gates.b = compact<2>(args.beta);
  p.final_state = compact<3>(args.final_state);
  p.o = compact<3>(args.o);
  const ConstTensor& pool = args.initial_state.defined() ? args.initial_state : ConstTensor(args.final_state);
  p.slots = slot_table(args.state_indices, args.fault, pool.defined() ? pool.dim(0) : 0);
  p.scale = resolve_scale(args.scale, s.k);
  p.tokens = static_cast<int>(s.tokens);
  p.hk = static_cast<int>(s.hk);
  p.ratio = static_cast<int>(s.hv / s.hk);
  p.v_size = static_cast<int>(s.v);
  p.head_map = args.head_map;
  p.norm = {args.qk_norm, args.qk_norm_eps, compact<1>(args.q_norm_weight), compact<1>(args.k_norm_weight)};
  p.snapshots = compact<4>(args.snapshots);
  return p;
}

// One token, by warps that share nothing.
std::string decode_one_supports(const RecurrentGatedDeltaRuleArgs& args, const Stream& stream) {
  const Sizes s(args);
  if (s.tokens != 1) return "needs one token, not " + std::to_string(s.tokens);
  if (args.snapshots.defined()) return "does not take snapshots";
  for (const ConstTensor& state : {args.initial_state, ConstTensor(args.final_state)}) {
    if (!rows_aligned_to(state, 16)) return "needs rows of states aligned to 16 bytes";
  }
  return decode_supports(args, stream);
}

void run_decode_one(const RecurrentGatedDeltaRuleArgs& args, Workspace, const Stream& stream) {
  const Sizes s(args);
  if (s.sequences * s.hv == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DecodeOneKernel chosen = decode_one_kernel(s.k, *state_type(args));
  const std::int64_t head_warps = s.v / chosen.warp_rows;
  Decode p = decode_parameters(args, s);
  std::int64_t warps = chosen.warps;
  while (head_warps % warps != 0) warps /= 2;
  p.tile_warps = static_cast<int>(warps);
  const dim3 blocks(static_cast<unsigned>(head_warps / warps), static_cast<unsigned>(s.hv),
                    static_cast<unsigned>(s.sequences));
  pdl_launch(chosen.kernel, blocks, dim3(static_cast<unsigned>(warps * kWarpSize)), 0, properties(stream.device.index),
             native(stream), args.kName, p);
}

// Launches kernel decode for tokens that go as `tokens` says.
void launch_decode(const RecurrentGatedDeltaRuleArgs& args, Tokens tokens, const Stream& stream) {
  const Sizes s(args);
  if (s.sequences * s.hv == 0) return;
  const CurrentDevice current(stream, args.kName);
  constexpr int kWarpRows = StateTile<128, StateLayout::kVK>::kWarpV;
  static_assert(StateTile<64, StateLayout::kVK>::kWarpV == kWarpRows);
  const std::int64_t head_warps = s.v / kWarpRows;
  // The blocks of a head have as many warps each: a divisor of the head's.
  std::int64_t tile_warps = choose_warps(s, kWarpRows, properties(stream.device.index).multiprocessors);
  while (head_warps % tile_warps != 0) --tile_warps;
  const std::int64_t warps = std::max(tile_warps, (s.tokens + 1) / 2);
  Decode p = decode_parameters(args, s);
  p.tile_warps = static_cast<int>(tile_warps);
  const std::size_t memory = decode_memory_bytes(s.k, tokens, s.tokens, tile_warps * kWarpRows, tile_warps);
  const dim3 blocks(static_cast<unsigned>(head_warps / tile_warps), static_cast<unsigned>(s.hv),
                    static_cast<unsigned>(s.sequences));
  pdl_launch(decode_kernel(s.k, *state_type(args), tokens), blocks, dim3(static_cast<unsigned>(warps * kWarpSize)),
             memory, properties(stream.device.index), native(stream), args.kName, p);
}

void run_decode(const RecurrentGatedDeltaRuleArgs& args, Workspace, const Stream& stream) {
  launch_decode(args, Tokens::kOneByOne, stream);
}

std::string together_supports(const RecurrentGatedDeltaRuleArgs& args, const Stream& stream) {
  if (Sizes(args).tokens < 2) return "needs 2 to 8 tokens, not " + std::to_string(Sizes(args).tokens);
  if (args.snapshots.defined()) return "does not take snapshots";
  return decode_supports(args, stream);
}

void run_together(const RecurrentGatedDeltaRuleArgs& args, Workspace, const Stream& stream) {
  const bool exact = args.q.dtype != DType::kF32 && args.qk_norm != QkNorm::kRms;
  launch_decode(args, exact ? Tokens::kAllExact : Tokens::kAll, stream);
}

// ---- registers: any number of tokens

std::string supports(const RecurrentGatedDeltaRuleArgs& args, const Stream&) { return token_by_token_supports(args); }

void run(const RecurrentGatedDeltaRuleArgs& args, Workspace, const Stream& stream) {
  run_token_by_token(args, {args.snapshots, {}}, stream, RecurrentGatedDeltaRuleArgs::kName);
}

// ---- costs

// What the costs of a call depend on.
struct CallSize {
  double rows;          // of states, per multiprocessor
  double later_tokens;  // of a sequence, besides its first

  CallSize(const RecurrentGatedDeltaRuleArgs& args, const Stream& stream) {
    const Sizes s(args);
    const int multiprocessors = std::max(1, properties(stream.device.index).multiprocessors);
    const std::int64_t sequences = std::max<std::int64_t>(planned_rows(s.sequences, stream), 1);
    const std::int64_t tokens = args.cu_seqlens.defined() ? (s.tokens + sequences - 1) / sequences : s.tokens;
    rows = static_cast<double>(sequences * s.hv * s.v) / multiprocessors;
    later_tokens = static_cast<double>(std::max<std::int64_t>(tokens - 1, 0));
  }
};

bool has_16_bit_states(const RecurrentGatedDeltaRuleArgs& args) { return state_type(args) == DType::kBF16; }

double decode_one_cost(const RecurrentGatedDeltaRuleArgs& args, const Stream& stream) {
  using namespace tuning::gated_delta;
  return kDecodeOneCall + CallSize(args, stream).rows * (has_16_bit_states(args) ? kDecodeOneRow16 : kDecodeOneRow);
}

double together_cost(const RecurrentGatedDeltaRuleArgs& args, const Stream& stream) {
  using namespace tuning::gated_delta;
  const CallSize size(args, stream);
  return kDecodeCall + size.rows * kDecodeRow + size.later_tokens * (kTogetherToken + size.rows * kTogetherRowToken);
}

double decode_cost(const RecurrentGatedDeltaRuleArgs& args, const Stream& stream) {
  using namespace tuning::gated_delta;
  const CallSize size(args, stream);
  return kDecodeCall + size.rows * (has_16_bit_states(args) ? kDecodeRow16 : kDecodeRow) +
         size.later_tokens * (kDecodeToken + size.rows * kDecodeRowToken);
}

double registers_cost(const RecurrentGatedDeltaRuleArgs& args, const Stream& stream) {
  using namespace tuning::gated_delta;
  const CallSize size(args, stream);
  return kRegistersCall + size.rows * kRegistersRow + size.later_tokens * (kDecodeToken + size.rows * kDecodeRowToken);
}

constexpr Kernel<RecurrentGatedDeltaRuleArgs> kKernels[] = {
    {"decode_one", decode_one_supports, no_workspace<RecurrentGatedDeltaRuleArgs>, run_decode_one, nullptr,
     Arithmetic::kF32, decode_one_cost},
    {"decode_together", together_supports, no_workspace<RecurrentGatedDeltaRuleArgs>, run_together, nullptr,
     Arithmetic::kF32, together_cost},
    {"decode", decode_supports, no_workspace<RecurrentGatedDeltaRuleArgs>, run_decode, nullptr, Arithmetic::kF32,
     decode_cost},
    {"registers", supports, no_workspace<RecurrentGatedDeltaRuleArgs>, run, nullptr, Arithmetic::kF32, registers_cost}};

}  // namespace

KernelList<RecurrentGatedDeltaRuleArgs> recurrent_gated_delta_rule_kernels() { return kKernels; }

}  // namespace thalweg::cu
