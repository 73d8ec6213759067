// Launches of the recurrence and of the fused decode step.

#include "metal/gated_delta.h"
#include "metal/kernels.h"

namespace thalweg::metal {
namespace {

std::size_t step_floats(std::int64_t k, std::int64_t v) {
  return static_cast<std::size_t>(kStepTokens * (2 * k + v + 2));
}

void run(const RecurrentGatedDeltaRuleArgs& args, Workspace, const Stream& stream) {
  const bool raw = args.gates.a.defined();
  const bool vk = args.state_layout == StateLayout::kVK;
  const ConstTensor& pool = args.initial_state.defined() ? args.initial_state : ConstTensor(args.final_state);
  const std::int64_t k = args.k.dim(3);
  const std::int64_t v = args.v.dim(3);
  RecurrentParameters p{};
  p.sequences = sequences_of(args.cu_seqlens, args.k);
  p.hk = static_cast<std::int32_t>(args.k.dim(2));
  p.hv = static_cast<std::int32_t>(args.v.dim(2));
  p.slots = static_cast<std::int32_t>(pool.dim(0));
  p.scale = scale_of(args.scale, k);
  p.norm_eps = args.qk_norm_eps;
  p.q = view_of(args.q);
  p.k = view_of(args.k);
  p.v = view_of(args.v);
  p.o = view_of(args.o);
  p.gates = {view_of(raw ? args.gates.a : args.g), view_of(raw ? args.gates.b : args.beta)};
  p.q_weight_head = args.q_norm_weight.stride(0);
  p.k_weight_head = args.k_norm_weight.stride(0);
  p.initial = state_view(args.initial_state, vk);
  p.final = state_view(args.final_state, vk);
  p.snapshots = chunk_states_view(args.snapshots, vk);
  Launch launch;
  launch.kernel = args.kName;
  launch.set(p).add(args.q).add(args.k).add(args.v);
  add_gates(launch, args.g, args.beta, args.gates);
  launch.add(args.q_norm_weight).add(args.k_norm_weight).add(args.initial_state).add(args.state_indices);
  launch.add(args.cu_seqlens).add(args.o).add(args.final_state).add(args.snapshots).add(args.fault);
  launch.constant("kType", args.k.dtype).constant("kOutType", args.o.dtype).constant("kStateType", pool.dtype);
  launch.constant("kSnapshotType", args.snapshots.dtype).constant("kHeadK", k).constant("kHeadV", v);
  launch.constant("kTiled", args.head_map == HeadMap::kTiled).constant("kRagged", args.cu_seqlens.defined());
  launch.constant("kIndexed", args.state_indices.defined()).constant("kHasInitial", args.initial_state.defined());
  launch.constant("kHasFinal", args.final_state.defined()).constant("kHasStates", args.snapshots.defined());
  launch.constant("kHasFault", args.fault.defined()).constant("kNorm", args.qk_norm);
  launch.constant("kWeightType", args.q_norm_weight.dtype);
  launch.threads = 32 * kRecurrentSimdgroups;
  launch.threadgroup_bytes = step_floats(k, 0) * sizeof(float);
  launch.grid = {ceil_div(v, kRecurrentSimdgroups * kStepRows), static_cast<std::uint32_t>(p.hv),
                 static_cast<std::uint32_t>(p.sequences.count)};
  make_encoder(args.kName, stream)->launch(launch);
}

std::string supports(const GatedDeltaPrepStepArgs& args, const Stream&) {
  return args.x.dim(1) <= kStepTokens ? "" : "needs at most 8 tokens of each sequence";
}

void run(const GatedDeltaPrepStepArgs& args, Workspace, const Stream& stream) {
  const bool vk = args.state_layout == StateLayout::kVK;
  const std::int64_t hv = args.state_in.dim(1);
  const std::int64_t v = args.state_in.dim(vk ? 2 : 3);
  const std::int64_t k = args.state_in.dim(vk ? 3 : 2);
  const std::int64_t hk = (args.x.dim(2) - hv * v) / (2 * k);
  const bool convolution = args.conv_weight.defined();
  StepParameters p{};
  p.tokens = static_cast<std::int32_t>(args.x.dim(1));
  p.hk = static_cast<std::int32_t>(hk);
  p.hv = static_cast<std::int32_t>(hv);
  p.slots = static_cast<std::int32_t>(args.state_in.dim(0));
  p.scale = scale_of(args.scale, k);
  p.norm_eps = args.qk_norm_eps;
  p.out_norm_eps = args.norm_eps;
  p.x = view_of(args.x);
  p.conv_weight_channel = args.conv_weight.stride(0);
  p.conv_state = view_of(args.conv_state);
  p.z = view_of(args.z);
  p.y = view_of(args.y);
  p.gates = {view_of(args.gates.a), view_of(args.gates.b)};
  p.q_weight_head = args.q_norm_weight.stride(0);
  p.k_weight_head = args.k_norm_weight.stride(0);
  p.state_in = state_view(args.state_in, vk);
  p.state_out = state_view(args.state_out, vk);
  p.snapshots = chunk_states_view(args.snapshots, vk);
  Launch launch;
  launch.kernel = args.kName;
  launch.set(p).add(args.x).add(args.conv_weight).add(args.conv_state);
  add_gates(launch, {}, {}, args.gates);
  launch.add(args.q_norm_weight).add(args.k_norm_weight).add(args.state_in).add(args.state_out);
  launch.add(args.state_indices).add(args.snapshots).add(args.z).add(args.norm_weight).add(args.y).add(args.fault);
  launch.constant("kType", args.x.dtype).constant("kOutType", args.y.dtype);
  launch.constant("kStateType", args.state_in.dtype).constant("kSnapshotType", args.snapshots.dtype);
  launch.constant("kHeadK", k).constant("kHeadV", v).constant("kTiled", args.head_map == HeadMap::kTiled);
  launch.constant("kIndexed", args.state_indices.defined()).constant("kHasStates", args.snapshots.defined());
  launch.constant("kHasFault", args.fault.defined()).constant("kNorm", args.qk_norm);
  launch.constant("kWeightType", args.q_norm_weight.dtype);
  launch.constant("kTaps", convolution ? args.conv_weight.dim(1) : 0);
  launch.constant("kConvWeightType", args.conv_weight.dtype).constant("kConvStateType", args.conv_state.dtype);
  launch.constant("kGatedNorm", args.z.defined()).constant("kOutWeightType", args.norm_weight.dtype);
  launch.threads = 32 * kStepSimdgroups;
  launch.threadgroup_bytes = step_floats(k, v) * sizeof(float);
  launch.grid = {static_cast<std::uint32_t>(hk), static_cast<std::uint32_t>(args.x.dim(0)), 1};
  make_encoder(args.kName, stream)->launch(launch);
}

constexpr Kernel<RecurrentGatedDeltaRuleArgs> kRecurrent[] = {
    {"state_rows", always_supported<RecurrentGatedDeltaRuleArgs>, no_workspace<RecurrentGatedDeltaRuleArgs>, run}};
constexpr Kernel<GatedDeltaPrepStepArgs> kStep[] = {{"fused", supports, no_workspace<GatedDeltaPrepStepArgs>, run}};

}  // namespace

KernelList<RecurrentGatedDeltaRuleArgs> recurrent_gated_delta_rule_kernels() { return kRecurrent; }
KernelList<GatedDeltaPrepStepArgs> gated_delta_prep_step_kernels() { return kStep; }

}  // namespace thalweg::metal
