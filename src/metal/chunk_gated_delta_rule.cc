// Prefill in two launches: chunk_prepare computes what does not depend on the state, for all chunks in parallel;
// chunk_scan then goes through the chunks of a sequence in order.

#include "metal/gated_delta.h"
#include "metal/kernels.h"

namespace thalweg::metal {
namespace {

constexpr std::int64_t kChunkTokens = kMaxChunk;
constexpr std::int64_t kMaxScanSimdgroups = 16;  // eight rows of a state each

std::size_t workspace(const ChunkGatedDeltaRuleArgs& args, const Stream&) {
  const std::int64_t chunks = max_chunks(args.cu_seqlens, args.k, kChunkTokens);
  return static_cast<std::size_t>(chunks * args.v.dim(2) * kRecordFloats) * sizeof(float);
}

Launch prepare(const ChunkGatedDeltaRuleArgs& args, const Buffer& records, PrepareParameters& p) {
  const bool raw = args.gates.a.defined();
  const std::int64_t hk = args.k.dim(2);
  p.sequences = sequences_of(args.cu_seqlens, args.k);
  p.hk = static_cast<std::int32_t>(hk);
  p.hv = static_cast<std::int32_t>(args.v.dim(2));
  p.scale = scale_of(args.scale, args.k.dim(3));
  p.norm_eps = args.qk_norm_eps;
  p.q = view_of(args.q);
  p.k = view_of(args.k);
  p.gates = {view_of(raw ? args.gates.a : args.g), view_of(raw ? args.gates.b : args.beta)};
  p.q_weight_head = args.q_norm_weight.stride(0);
  p.k_weight_head = args.k_norm_weight.stride(0);
  Launch launch;
  launch.kernel = "chunk_prepare";
  launch.set(p).add(args.q).add(args.k);
  add_gates(launch, args.g, args.beta, args.gates);
  launch.add(args.q_norm_weight).add(args.k_norm_weight).add(args.cu_seqlens).add(records);
  launch.constant("kType", args.k.dtype).constant("kHeadK", args.k.dim(3)).constant("kChunk", kChunkTokens);
  launch.constant("kTiled", args.head_map == HeadMap::kTiled).constant("kRagged", args.cu_seqlens.defined());
  launch.constant("kNorm", args.qk_norm).constant("kWeightType", args.q_norm_weight.dtype);
  launch.threads = kThreadsOfKernel;
  launch.threadgroup_bytes = (2 * kLowerFloats + 16 * kTileFloats + 4 * kMaxChunk) * sizeof(float);
  launch.grid = {max_chunks(args.cu_seqlens, args.k, kChunkTokens), static_cast<std::uint32_t>(hk), 1};
  return launch;
}

Launch scan(const ChunkGatedDeltaRuleArgs& args, const Buffer& records, ScanParameters& p) {
  const std::int64_t v = args.v.dim(3);
  const std::int64_t slabs = ceil_div(v, 8 * kMaxScanSimdgroups);
  const std::int64_t simdgroups = ceil_div(v, 8 * slabs);
  const bool vk = args.state_layout == StateLayout::kVK;
  const ConstTensor& pool = args.initial_state.defined() ? args.initial_state : ConstTensor(args.final_state);
  p.sequences = sequences_of(args.cu_seqlens, args.k);
  p.hk = static_cast<std::int32_t>(args.k.dim(2));
  p.hv = static_cast<std::int32_t>(args.v.dim(2));
  p.slots = static_cast<std::int32_t>(pool.dim(0));
  p.chunks = static_cast<std::int32_t>(max_chunks(args.cu_seqlens, args.k, kChunkTokens));
  p.q = view_of(args.q);
  p.k = view_of(args.k);
  p.v = view_of(args.v);
  p.o = view_of(args.o);
  p.q_weight_head = args.q_norm_weight.stride(0);
  p.k_weight_head = args.k_norm_weight.stride(0);
  p.initial = state_view(args.initial_state, vk);
  p.final = state_view(args.final_state, vk);
  p.checkpoints = chunk_states_view(args.checkpoints, vk);
  p.checkpoint_tokens = args.checkpoint_tokens;
  p.max_checkpoints = static_cast<std::int32_t>(args.checkpoints.dim(1));
  Launch launch;
  launch.kernel = "chunk_scan";
  launch.set(p).add(args.q).add(args.k).add(args.v).add(args.q_norm_weight).add(args.k_norm_weight);
  launch.add(args.initial_state).add(args.state_indices).add(args.cu_seqlens).add(records).add(args.o);
  launch.add(args.final_state).add(args.checkpoints).add(args.fault);
  launch.constant("kType", args.k.dtype).constant("kOutType", args.o.dtype).constant("kStateType", pool.dtype);
  launch.constant("kHeadK", args.k.dim(3)).constant("kHeadV", v).constant("kChunk", kChunkTokens);
  launch.constant("kTiled", args.head_map == HeadMap::kTiled).constant("kRagged", args.cu_seqlens.defined());
  launch.constant("kIndexed", args.state_indices.defined()).constant("kHasInitial", args.initial_state.defined());
  launch.constant("kHasFinal", args.final_state.defined()).constant("kHasFault", args.fault.defined());
  launch.constant("kHasStates", args.checkpoints.defined()).constant("kSnapshotType", args.checkpoints.dtype);
  launch.constant("kNorm", args.qk_norm).constant("kWeightType", args.q_norm_weight.dtype);
  launch.threads = static_cast<std::uint32_t>(32 * simdgroups);
  launch.threadgroup_bytes = static_cast<std::size_t>(kLowerFloats + 2 * kMaxChunk * kBlockColumns + 5 * kMaxChunk +
                                                      simdgroups * kTileFloats) *
                             sizeof(float);
  launch.grid = {static_cast<std::uint32_t>(slabs), static_cast<std::uint32_t>(p.hv),
                 static_cast<std::uint32_t>(p.sequences.count)};
  launch.after_previous = true;
  return launch;
}

void run(const ChunkGatedDeltaRuleArgs& args, Workspace memory, const Stream& stream) {
  const Buffer records{memory.data, workspace(args, stream)};
  PrepareParameters prepare_parameters{};
  ScanParameters scan_parameters{};
  const auto encoder = make_encoder(args.kName, stream);
  encoder->launch(prepare(args, records, prepare_parameters));
  encoder->launch(scan(args, records, scan_parameters));
}

constexpr Kernel<ChunkGatedDeltaRuleArgs> kKernels[] = {
    {"prepare_scan", always_supported<ChunkGatedDeltaRuleArgs>, workspace, run}};

}  // namespace

KernelList<ChunkGatedDeltaRuleArgs> chunk_gated_delta_rule_kernels() { return kKernels; }

}  // namespace thalweg::metal
