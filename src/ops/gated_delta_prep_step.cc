#include <utility>

#include "ops/dispatch.h"
#include "ops/gated_delta_checks.h"

namespace thalweg {
namespace {

void check_drafts(Check& check, const GatedDeltaPrepStepArgs& args, Dim& n, Dim& channels, Dim& hv) {
  const bool replays = args.replay_x.defined();
  if (!replays && !args.drafts) {
    using Named = std::pair<const char*, ConstTensor>;
    for (const auto& [name, tensor] : {Named("replay_a", args.replay_a), Named("replay_b", args.replay_b),
                                       Named("replay_counts", args.replay_counts)}) {
      if (tensor.defined()) check.fail(name, "nothing without replay_x", to_string(tensor));
    }
    return;
  }
  const std::string with = replays ? " with replay_x" : " with drafts";
  if (args.state_in.dtype != DType::kF32) {
    check.fail("state_in", "F32" + with, std::string(dtype_name(args.state_in.dtype)));
  }
  const DType window = args.conv_state.dtype;
  if (args.conv_state.defined() && window != DType::kF32 && window != args.x.dtype) {
    check.fail("conv_state", "F32 or the dtype of x" + with, std::string(dtype_name(window)));
  }
  if (args.snapshots.defined()) check.fail("snapshots", "nothing" + with, to_string(args.snapshots));
  if (!replays) return;
  Dim slots{"slots", args.state_in.dim(0)}, replayed{"R"};
  check.output("replay_x", args.replay_x, {args.x.dtype}, slots, replayed, channels);
  check.output("replay_a", args.replay_a, {args.gates.a.dtype}, slots, replayed, hv);
  check.output("replay_b", args.replay_b, {args.gates.a.dtype}, slots, replayed, hv);
  check.input("replay_counts", args.replay_counts, {DType::kI32}, n);
  if (!check.host_values()) return;
  const auto* counts = static_cast<const std::int32_t*>(args.replay_counts.data);
  for (std::int64_t i = 0; i < n.value; ++i) {
    if (counts[i] < 0 || counts[i] > replayed.value) {
      check.fail("replay_counts", "numbers from 0 to R=" + std::to_string(replayed.value), std::to_string(counts[i]));
    }
  }
  if (!args.drafts) return;
  const auto* bounds = static_cast<const std::int32_t*>(args.cu_seqlens.data);
  for (std::int64_t i = 0; i < n.value; ++i) {
    const std::int64_t tokens = args.cu_seqlens.defined() ? bounds[i + 1] - bounds[i] : args.x.dim(1);
    if (tokens <= replayed.value + 1) continue;
    check.fail("replay_x", "room for the " + std::to_string(tokens - 1) + " drafts of a sequence",
               "R=" + std::to_string(replayed.value));
  }
}

}  // namespace

void validate(const GatedDeltaPrepStepArgs& args, Check& check) {
  Dim b{"B"}, t{"T"}, n{"N"}, channels{"2*HK*K+HV*V"}, hk{"HK"}, hv{"HV"}, v{"V"}, k{"K"}, taps{"W"};
  check.input("x", args.x, kFloatTypes, b, t, channels);
  check.cu_seqlens(args.cu_seqlens, b, t, n);
  check_states(check, "state_in", args.state_in, "state_out", args.state_out, args.state_indices, args.state_layout,
               {DType::kF32, DType::kBF16}, n, hv, v, k);
  if (!args.state_in.defined()) check.fail("state_in", "a state [B,HV,V,K] or a pool", "nothing");
  if (!args.state_out.defined()) check.fail("state_out", "a state like state_in", "nothing");
  check_head_sizes(check, k, v);
  const std::int64_t keys = channels.value - hv.value * v.value;
  if (!(keys > 0 && keys % (2 * k.value) == 0)) {
    check.fail("x", "2*HK*K + HV*V channels with the HV, V and K of state_in",
               to_string(args.x) + " and state_in " + to_string(args.state_in));
  }
  hk.value = keys / (2 * k.value);
  check_head_map(check, args.head_map, hk, hv);
  check_gates(check, args.gates, b, t, hv);
  check_qk_norm(check, args.qk_norm, args.qk_norm_eps, args.q_norm_weight, args.k_norm_weight, hk, k);
  if (args.conv_weight.defined()) {
    check.input("conv_weight", args.conv_weight, kFloatTypes, channels, taps);
    if (!(taps.value >= 2 && taps.value <= 8)) check.fail("conv_weight", "2 to 8 taps", std::to_string(taps.value));
    Dim slots{"slots", args.state_in.dim(0)}, history{"W-1", taps.value - 1};
    check.output("conv_state", args.conv_state, kFloatTypes, slots, channels, history);
  } else {
    if (args.conv_state.defined()) {
      check.fail("conv_state", "nothing without conv_weight", to_string(args.conv_state));
    }
  }
  if (args.snapshots.defined()) {
    const bool vk = args.state_layout == StateLayout::kVK;
    check.output("snapshots", args.snapshots, {DType::kF32, args.state_in.dtype}, b, t, hv, vk ? v : k, vk ? k : v);
  }
  if (args.z.defined()) {
    check.input("z", args.z, {args.x.dtype}, b, t, hv, v);
    check.input("norm_weight", args.norm_weight, kFloatTypes, v);
    if (!(args.norm_eps >= 0.0F)) check.fail("norm_eps", "0 or more", std::to_string(args.norm_eps));
  } else {
    if (args.norm_weight.defined()) check.fail("norm_weight", "nothing without z", to_string(args.norm_weight));
  }
  check.output("y", args.y, {DType::kF32, args.x.dtype}, b, t, hv, v);
  check.fault(args.fault);
  check_drafts(check, args, n, channels, hv);
}

THALWEG_OPERATION(gated_delta_prep_step, GatedDeltaPrepStepArgs);

}  // namespace thalweg
