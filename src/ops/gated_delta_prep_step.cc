#include "ops/dispatch.h"
#include "ops/gated_delta_checks.h"

namespace thalweg {

void validate(const GatedDeltaPrepStepArgs& args, Check& check) {
  Dim b{"B"}, t{"T"}, channels{"2*HK*K+HV*V"}, hk{"HK"}, hv{"HV"}, v{"V"}, k{"K"}, taps{"W"};
  check.input("x", args.x, kFloatTypes, b, t, channels);
  check_states(check, "state_in", args.state_in, "state_out", args.state_out, args.state_indices, args.state_layout,
               {DType::kF32, DType::kBF16}, b, hv, v, k);
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
}

THALWEG_OPERATION(gated_delta_prep_step, GatedDeltaPrepStepArgs);

}  // namespace thalweg
