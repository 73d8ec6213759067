// Launches of the recurrence and of the fused decode step.

#include <algorithm>

#include "core/arena.h"
#include "core/drafts.h"
#include "metal/gated_delta.h"
#include "metal/kernels.h"
#include "metal/layers.h"

namespace thalweg::metal {
namespace {

std::size_t step_floats(std::int64_t k, std::int64_t v) {
  return static_cast<std::size_t>(kStepTokens * (2 * k + v + 2));
}

Launch recurrent_launch(const RecurrentGatedDeltaRuleArgs& args, RecurrentParameters& p) {
  const bool raw = args.gates.a.defined();
  const bool vk = args.state_layout == StateLayout::kVK;
  const ConstTensor& pool = args.initial_state.defined() ? args.initial_state : ConstTensor(args.final_state);
  const std::int64_t k = args.k.dim(3);
  const std::int64_t v = args.v.dim(3);
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
  return launch;
}

void run(const RecurrentGatedDeltaRuleArgs& args, Workspace, const Stream& stream) {
  RecurrentParameters p{};
  make_encoder(args.kName, stream)->launch(recurrent_launch(args, p));
}

std::string supports(const GatedDeltaPrepStepArgs& args, const Stream&) {
  if (std::string reason = no_drafts_reason(args); !reason.empty()) return reason;
  return args.x.dim(1) <= kStepTokens ? "" : "needs at most 8 tokens of each sequence";
}

// What both kernels of the whole step take.
Launch step_launch(const GatedDeltaPrepStepArgs& args, StepParameters& p) {
  const bool vk = args.state_layout == StateLayout::kVK;
  const std::int64_t hv = args.state_in.dim(1);
  const std::int64_t v = args.state_in.dim(vk ? 2 : 3);
  const std::int64_t k = args.state_in.dim(vk ? 3 : 2);
  const std::int64_t hk = (args.x.dim(2) - hv * v) / (2 * k);
  const bool convolution = args.conv_weight.defined();
  p.sequences = sequences_of(args.cu_seqlens, args.x);
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
  launch.grid = {static_cast<std::uint32_t>(hk), static_cast<std::uint32_t>(p.sequences.count), 1};
  return launch;
}

void run(const GatedDeltaPrepStepArgs& args, Workspace, const Stream& stream) {
  StepParameters p{};
  make_encoder(args.kName, stream)->launch(step_launch(args, p));
}

// ---------------------------------------------------------------------------------------------------------------------
// The step with packed sequences, replays and drafts.

// As many as fit into 32 KB, kReplayTokens at the most, and no more than a sequence can have.
std::int64_t staged_tokens(const GatedDeltaPrepStepArgs& args, std::int64_t token_bytes) {
  constexpr std::int64_t kThreadgroupMemory = 32768;
  const std::int64_t replayed = args.replay_x.defined() ? args.replay_x.dim(1) : 0;
  const std::int64_t most = std::min<std::int64_t>(kReplayTokens, kThreadgroupMemory / token_bytes);
  return std::clamp<std::int64_t>(args.x.dim(1) + replayed, 1, most);
}

void run_replays(const GatedDeltaPrepStepArgs& args, Workspace, const Stream& stream) {
  StepParameters p{};
  Launch launch = step_launch(args, p);
  const bool vk = args.state_layout == StateLayout::kVK;
  const std::int64_t v = args.state_in.dim(vk ? 2 : 3);
  const std::int64_t k = args.state_in.dim(vk ? 3 : 2);
  const std::int64_t token_bytes = (2 * k + v + 2) * static_cast<std::int64_t>(sizeof(float));
  p.replays = args.replay_x.defined() ? 1 : 0;
  p.most_replayed = p.replays != 0 ? static_cast<std::int32_t>(args.replay_x.dim(1)) : 0;
  p.drafts = args.drafts ? 1 : 0;
  p.staged_tokens = static_cast<std::int32_t>(staged_tokens(args, token_bytes));
  p.replay_x = view_of(args.replay_x);
  p.replay_gates = {view_of(args.replay_a), view_of(args.replay_b)};
  launch.kernel = "gated_delta_replay_step";
  launch.add(args.cu_seqlens).add(args.replay_x).add(args.replay_a).add(args.replay_b).add(args.replay_counts);
  launch.constant("kRagged", args.cu_seqlens.defined());
  launch.threadgroup_bytes = static_cast<std::size_t>((p.staged_tokens * token_bytes + 15) / 16 * 16);
  make_encoder(args.kName, stream)->launch(launch);
}

// ---------------------------------------------------------------------------------------------------------------------
// The step in stages, for any number of tokens: convolution, recurrence, gated norm, with f32 between them.

struct StepMemory {
  Tensor mixed;  // [B,T,channels], with a convolution
  Tensor o;      // [B,T,HV,V], with a norm

  StepMemory(const GatedDeltaPrepStepArgs& args, Arena& arena) {
    if (args.conv_weight.defined()) {
      mixed = Tensor(arena.take<float>(args.x.size()), DType::kF32, {args.x.dim(0), args.x.dim(1), args.x.dim(2)},
                     args.x.device);
    }
    if (args.z.defined()) {
      o = Tensor(arena.take<float>(args.y.size()), DType::kF32,
                 {args.y.dim(0), args.y.dim(1), args.y.dim(2), args.y.dim(3)}, args.y.device);
    }
  }
};

std::size_t stages_workspace(const GatedDeltaPrepStepArgs& args, const Stream&) {
  Arena arena;
  const StepMemory counted(args, arena);
  return arena.used();
}

// `heads` heads of `width` from channel `first` of [B,T,channels] on.
ConstTensor heads_of(const ConstTensor& x, std::int64_t first, std::int64_t heads, std::int64_t width) {
  ConstTensor result(static_cast<const std::byte*>(x.data) + bytes_of(x.dtype, first), x.dtype,
                     {x.dim(0), x.dim(1), heads, width}, x.device);
  result.strides = {x.stride(0), x.stride(1), width, 1};
  return result;
}

RecurrentGatedDeltaRuleArgs recurrence_of(const GatedDeltaPrepStepArgs& args, const StepMemory& memory) {
  const ConstTensor mixed = memory.mixed.defined() ? ConstTensor(memory.mixed) : args.x;
  const bool vk = args.state_layout == StateLayout::kVK;
  const std::int64_t hv = args.state_in.dim(1);
  const std::int64_t v = args.state_in.dim(vk ? 2 : 3);
  const std::int64_t k = args.state_in.dim(vk ? 3 : 2);
  const std::int64_t hk = (args.x.dim(2) - hv * v) / (2 * k);
  RecurrentGatedDeltaRuleArgs rule;
  rule.q = heads_of(mixed, 0, hk, k);
  rule.k = heads_of(mixed, hk * k, hk, k);
  rule.v = heads_of(mixed, 2 * hk * k, hv, v);
  rule.gates = args.gates;
  rule.q_norm_weight = args.q_norm_weight;
  rule.k_norm_weight = args.k_norm_weight;
  rule.initial_state = args.state_in;
  rule.final_state = args.state_out;
  rule.state_indices = args.state_indices;
  rule.snapshots = args.snapshots;
  rule.o = memory.o.defined() ? memory.o : args.y;
  rule.fault = args.fault;
  rule.head_map = args.head_map;
  rule.state_layout = args.state_layout;
  rule.scale = args.scale;
  rule.qk_norm = args.qk_norm;
  rule.qk_norm_eps = args.qk_norm_eps;
  return rule;
}

void run_stages(const GatedDeltaPrepStepArgs& args, Workspace workspace, const Stream& stream) {
  Arena arena(workspace);
  const StepMemory memory(args, arena);
  const auto encoder = make_encoder(args.kName, stream);
  if (memory.mixed.defined()) {
    CausalConv1dUpdateArgs convolution;
    convolution.x = args.x;
    convolution.weight = args.conv_weight;
    convolution.conv_state = args.conv_state;
    convolution.state_indices = args.state_indices;
    convolution.y = memory.mixed;
    convolution.activation = Activation::kSilu;
    ConvParameters p{};
    encoder->launch(conv_update_launch(convolution, p));
  }
  RecurrentParameters p{};
  Launch rule = recurrent_launch(recurrence_of(args, memory), p);
  rule.after_previous = memory.mixed.defined();
  encoder->launch(rule);
  if (!args.z.defined()) return;
  // The norm's rows are tokens; z and y may be strided by batch row, each of which is a launch then.
  for (std::int64_t b = 0; b < args.x.dim(0); ++b) {
    GatedRmsNormArgs norm;
    norm.x = select(memory.o, b);
    norm.z = select(args.z, b);
    norm.weight = args.norm_weight;
    norm.y = select(args.y, b);
    norm.eps = args.norm_eps;
    NormParameters q{};
    q.tokens = static_cast<std::int32_t>(args.x.dim(1));
    q.slots = static_cast<std::int32_t>(args.state_in.dim(0));
    const ConstTensor index = args.state_indices.defined() ? narrow(args.state_indices, 0, b, 1) : ConstTensor();
    Launch launch = gated_norm_launch(norm, index, q);
    launch.after_previous = b == 0;
    encoder->launch(launch);
  }
}

std::string stages_supports(const GatedDeltaPrepStepArgs& args, const Stream&) { return no_drafts_reason(args); }

constexpr Kernel<RecurrentGatedDeltaRuleArgs> kRecurrent[] = {
    {"state_rows", always_supported<RecurrentGatedDeltaRuleArgs>, no_workspace<RecurrentGatedDeltaRuleArgs>, run}};
constexpr Kernel<GatedDeltaPrepStepArgs> kStep[] = {
    {"fused", supports, no_workspace<GatedDeltaPrepStepArgs>, run},
    {"stages", stages_supports, stages_workspace, run_stages},
    {"replay", always_supported<GatedDeltaPrepStepArgs>, no_workspace<GatedDeltaPrepStepArgs>, run_replays}};

}  // namespace

KernelList<RecurrentGatedDeltaRuleArgs> recurrent_gated_delta_rule_kernels() { return kRecurrent; }
KernelList<GatedDeltaPrepStepArgs> gated_delta_prep_step_kernels() { return kStep; }

}  // namespace thalweg::metal
