// Launches of the stages of the chunk form.

#include "metal/gated_delta.h"
#include "metal/kernels.h"

namespace thalweg::metal {
namespace {

void run(const ChunkLocalCumsumArgs& args, Workspace, const Stream& stream) {
  const std::int64_t hv = args.g.dim(2);
  CumsumParameters p{};
  p.sequences = sequences_of(args.cu_seqlens, args.g);
  p.hv = static_cast<std::int32_t>(hv);
  p.g = view_of(args.g);
  p.sums = view_of(args.g_cumsum);
  Launch launch;
  launch.kernel = "chunk_local_cumsum";
  launch.set(p).add(args.g).add(args.cu_seqlens).add(args.g_cumsum);
  launch.constant("kChunk", args.chunk_size).constant("kRagged", args.cu_seqlens.defined());
  launch.grid = {ceil_div(hv, 32), max_chunks(args.cu_seqlens, args.g, args.chunk_size), 1};
  make_encoder(args.kName, stream)->launch(launch);
}

void run(const L2normArgs& args, Workspace, const Stream& stream) {
  L2normParameters p{};
  p.tokens = static_cast<std::int32_t>(args.x.dim(1));
  p.heads = static_cast<std::int32_t>(args.x.dim(2));
  p.rows = args.x.dim(0) * args.x.dim(1) * args.x.dim(2);
  p.eps = args.eps;
  p.x = view_of(args.x);
  p.y = view_of(args.y);
  Launch launch;
  launch.kernel = "l2norm";
  launch.set(p).add(args.x).add(args.y);
  launch.constant("kType", args.x.dtype).constant("kHeadK", args.x.dim(3));
  launch.grid = {ceil_div(p.rows, kSimdgroupsOfKernel), 1, 1};
  launch.threads = kThreadsOfKernel;
  make_encoder(args.kName, stream)->launch(launch);
}

constexpr std::size_t kBlockFloats = std::size_t{kMaxChunk} * kBlockColumns;

Launch matrix_launch(std::string_view kernel, std::size_t threadgroup_floats) {
  Launch launch;
  launch.kernel = kernel;
  launch.threads = kThreadsOfKernel;
  launch.threadgroup_bytes = threadgroup_floats * sizeof(float);
  return launch;
}

void run(const ChunkScaledDotKktArgs& args, Workspace, const Stream& stream) {
  const std::int64_t hk = args.k.dim(2);
  KktParameters p{};
  p.sequences = sequences_of(args.cu_seqlens, args.k);
  p.hk = static_cast<std::int32_t>(hk);
  p.hv = static_cast<std::int32_t>(args.beta.dim(2));
  p.k = view_of(args.k);
  p.beta = view_of(args.beta);
  p.g = view_of(args.g_cumsum);
  p.a = view_of(args.a);
  Launch launch = matrix_launch(args.kName, 2 * kBlockFloats + kLowerFloats + 2 * kMaxChunk);
  launch.set(p).add(args.k).add(args.beta).add(args.g_cumsum).add(args.cu_seqlens).add(args.a);
  launch.constant("kType", args.k.dtype).constant("kHeadK", args.k.dim(3)).constant("kChunk", args.chunk_size);
  launch.constant("kTiled", args.head_map == HeadMap::kTiled).constant("kSeed", args.rounding == Rounding::kSeed);
  launch.constant("kRagged", args.cu_seqlens.defined());
  launch.grid = {max_chunks(args.cu_seqlens, args.k, args.chunk_size), static_cast<std::uint32_t>(hk), 1};
  make_encoder(args.kName, stream)->launch(launch);
}

void run(const SolveTrilArgs& args, Workspace, const Stream& stream) {
  SolveParameters p{};
  p.sequences = sequences_of(args.cu_seqlens, args.a);
  p.hv = static_cast<std::int32_t>(args.a.dim(2));
  p.a = view_of(args.a);
  p.a_inv = view_of(args.a_inv);
  Launch launch = matrix_launch(args.kName, kLowerFloats + 16 * kTileFloats);
  launch.set(p).add(args.a).add(args.cu_seqlens).add(args.a_inv);
  launch.constant("kOutType", args.a_inv.dtype).constant("kChunk", args.chunk_size);
  launch.constant("kRagged", args.cu_seqlens.defined());
  launch.grid = {max_chunks(args.cu_seqlens, args.a, args.chunk_size), static_cast<std::uint32_t>(args.a.dim(2)), 1};
  make_encoder(args.kName, stream)->launch(launch);
}

void run(const RecomputeWUArgs& args, Workspace, const Stream& stream) {
  WUParameters p{};
  p.sequences = sequences_of(args.cu_seqlens, args.k);
  p.hk = static_cast<std::int32_t>(args.k.dim(2));
  p.hv = static_cast<std::int32_t>(args.v.dim(2));
  p.k = view_of(args.k);
  p.v = view_of(args.v);
  p.beta = view_of(args.beta);
  p.g = view_of(args.g_cumsum);
  p.a_inv = view_of(args.a_inv);
  p.w = view_of(args.w);
  p.u = view_of(args.u);
  Launch launch = matrix_launch(args.kName, kLowerFloats + kBlockFloats + 2 * kMaxChunk);
  launch.set(p).add(args.k).add(args.v).add(args.beta).add(args.g_cumsum).add(args.a_inv).add(args.cu_seqlens);
  launch.add(args.w).add(args.u);
  launch.constant("kType", args.k.dtype).constant("kOutType", args.a_inv.dtype).constant("kHeadK", args.k.dim(3));
  launch.constant("kHeadV", args.v.dim(3)).constant("kChunk", args.chunk_size);
  launch.constant("kTiled", args.head_map == HeadMap::kTiled).constant("kSeed", args.rounding == Rounding::kSeed);
  launch.constant("kRagged", args.cu_seqlens.defined());
  launch.grid = {max_chunks(args.cu_seqlens, args.k, args.chunk_size), static_cast<std::uint32_t>(args.v.dim(2)), 1};
  make_encoder(args.kName, stream)->launch(launch);
}

void run(const ChunkStateArgs& args, Workspace, const Stream& stream) {
  const std::int64_t hv = args.u.dim(2);
  const std::int64_t v = args.u.dim(3);
  const bool vk = args.state_layout == StateLayout::kVK;
  const ConstTensor& pool = args.initial_state.defined() ? args.initial_state : ConstTensor(args.final_state);
  StateParameters p{};
  p.sequences = sequences_of(args.cu_seqlens, args.k);
  p.hk = static_cast<std::int32_t>(args.k.dim(2));
  p.hv = static_cast<std::int32_t>(hv);
  p.slots = static_cast<std::int32_t>(pool.dim(0));
  p.k = view_of(args.k);
  p.w = view_of(args.w);
  p.u = view_of(args.u);
  p.g = view_of(args.g_cumsum);
  p.v_new = view_of(args.v_new);
  p.initial = state_view(args.initial_state, vk);
  p.final = state_view(args.final_state, vk);
  p.h = chunk_states_view(args.h, true);
  Launch launch = matrix_launch(args.kName, 2 * kBlockFloats + kMaxChunk + kSimdgroupsOfKernel * kTileFloats);
  launch.set(p).add(args.k).add(args.w).add(args.u).add(args.g_cumsum).add(args.initial_state).add(args.state_indices);
  launch.add(args.cu_seqlens).add(args.h).add(args.v_new).add(args.final_state);
  launch.constant("kType", args.k.dtype).constant("kStateType", pool.dtype).constant("kHeadK", args.k.dim(3));
  launch.constant("kHeadV", v).constant("kChunk", args.chunk_size);
  launch.constant("kTiled", args.head_map == HeadMap::kTiled).constant("kSeed", args.rounding == Rounding::kSeed);
  launch.constant("kRagged", args.cu_seqlens.defined()).constant("kIndexed", args.state_indices.defined());
  launch.constant("kHasInitial", args.initial_state.defined()).constant("kHasFinal", args.final_state.defined());
  launch.constant("kHasStates", args.h.defined()).constant("kHasNew", args.v_new.defined());
  launch.grid = {ceil_div(v, kBlockColumns), static_cast<std::uint32_t>(hv),
                 static_cast<std::uint32_t>(p.sequences.count)};
  make_encoder(args.kName, stream)->launch(launch);
}

void run(const ChunkOutputArgs& args, Workspace, const Stream& stream) {
  OutputParameters p{};
  p.sequences = sequences_of(args.cu_seqlens, args.k);
  p.hk = static_cast<std::int32_t>(args.k.dim(2));
  p.hv = static_cast<std::int32_t>(args.v_new.dim(2));
  p.scale = scale_of(args.scale, args.k.dim(3));
  p.q = view_of(args.q);
  p.k = view_of(args.k);
  p.v_new = view_of(args.v_new);
  p.g = view_of(args.g_cumsum);
  p.o = view_of(args.o);
  p.h = chunk_states_view(args.h, true);
  Launch launch = matrix_launch(args.kName, kLowerFloats + 2 * kBlockFloats + kMaxChunk);
  launch.set(p).add(args.q).add(args.k).add(args.v_new).add(args.h).add(args.g_cumsum).add(args.cu_seqlens).add(args.o);
  launch.constant("kType", args.k.dtype).constant("kOutType", args.o.dtype).constant("kHeadK", args.k.dim(3));
  launch.constant("kHeadV", args.v_new.dim(3)).constant("kChunk", args.chunk_size);
  launch.constant("kTiled", args.head_map == HeadMap::kTiled).constant("kSeed", args.rounding == Rounding::kSeed);
  launch.constant("kRagged", args.cu_seqlens.defined());
  launch.grid = {max_chunks(args.cu_seqlens, args.k, args.chunk_size), static_cast<std::uint32_t>(p.hv), 1};
  make_encoder(args.kName, stream)->launch(launch);
}

// Every stage has one kernel, for all arguments and without scratch memory.
template <class Args>
void add(Backend& backend, std::string_view name) {
  static Kernel<Args> kernel[1];
  kernel[0] = {name, always_supported<Args>, no_workspace<Args>, run};
  std::get<KernelList<Args>>(backend.kernels) = kernel;
}

}  // namespace

void add_chunk_stage_kernels(Backend& backend) {
  add<ChunkLocalCumsumArgs>(backend, "heads");
  add<L2normArgs>(backend, "simdgroup_rows");
  add<ChunkScaledDotKktArgs>(backend, "key_head_tiles");
  add<SolveTrilArgs>(backend, "block_inverse");
  add<RecomputeWUArgs>(backend, "tiles");
  add<ChunkStateArgs>(backend, "register_state");
  add<ChunkOutputArgs>(backend, "tiles");
}

}  // namespace thalweg::metal
