// Launches of the convolutions and of the operations that move rows.

#include "metal/gated_delta.h"
#include "metal/kernels.h"
#include "metal/layers.h"

namespace thalweg::metal {
namespace {

// Strides of states [slots,C,W-1].
View conv_state_view(const ConstTensor& state) { return {state.stride(0), state.stride(1), 0}; }

template <class Args>
void add_conv_constants(Launch& launch, const Args& args, DType state) {
  launch.constant("kType", args.x.dtype).constant("kOutType", args.y.dtype).constant("kTaps", args.weight.dim(1));
  launch.constant("kConvWeightType", args.weight.dtype).constant("kConvStateType", state);
  launch.constant("kHasBias", args.bias.defined()).constant("kActivation", args.activation);
  launch.constant("kIndexed", args.state_indices.defined());
}

void run(const CausalConv1dArgs& args, Workspace, const Stream& stream) {
  const ConstTensor& pool = args.initial_state.defined() ? args.initial_state : ConstTensor(args.final_state);
  ConvParameters p{};
  p.sequences = sequences_of(args.cu_seqlens, args.x);
  p.channels = static_cast<std::int32_t>(args.x.dim(2));
  p.slots = static_cast<std::int32_t>(pool.dim(0));
  p.x = view_of(args.x);
  p.y = view_of(args.y);
  p.initial = conv_state_view(args.initial_state);
  p.final = conv_state_view(args.final_state);
  p.weight_channel = args.weight.stride(0);
  const auto constants = [&](Launch& launch) {
    add_conv_constants(launch, args, pool.dtype);
    launch.constant("kRagged", args.cu_seqlens.defined()).constant("kHasInitial", args.initial_state.defined());
    launch.threads = kMoveThreads;
  };
  const auto encoder = make_encoder(args.kName, stream);
  Launch outputs;
  outputs.kernel = args.kName;
  outputs.set(p).add(args.x).add(args.weight).add(args.bias).add(args.initial_state).add(args.state_indices);
  outputs.add(args.cu_seqlens).add(args.y);
  constants(outputs);
  outputs.grid = {ceil_div(p.channels, kMoveThreads), ceil_div(args.x.dim(1), kConvTokens),
                  static_cast<std::uint32_t>(args.x.dim(0))};
  encoder->launch(outputs);
  if (!args.final_state.defined()) return;
  Launch state;
  state.kernel = "causal_conv1d_state";
  state.set(p).add(args.x).add(args.initial_state).add(args.state_indices).add(args.cu_seqlens).add(args.final_state);
  constants(state);
  state.grid = {ceil_div(p.channels, kMoveThreads), static_cast<std::uint32_t>(p.sequences.count), 1};
  state.after_previous = true;
  encoder->launch(state);
}

}  // namespace

Launch conv_update_launch(const CausalConv1dUpdateArgs& args, ConvParameters& p) {
  p.sequences = sequences_of({}, args.x);
  p.channels = static_cast<std::int32_t>(args.x.dim(2));
  p.slots = static_cast<std::int32_t>(args.conv_state.dim(0));
  p.x = view_of(args.x);
  p.y = view_of(args.y);
  p.final = conv_state_view(args.conv_state);
  p.weight_channel = args.weight.stride(0);
  Launch launch;
  launch.kernel = args.kName;
  launch.set(p).add(args.x).add(args.weight).add(args.bias).add(args.state_indices).add(args.conv_state).add(args.y);
  add_conv_constants(launch, args, args.conv_state.dtype);
  launch.threads = kMoveThreads;
  launch.grid = {ceil_div(p.channels, kMoveThreads), static_cast<std::uint32_t>(args.x.dim(0)), 1};
  return launch;
}

namespace {

void run(const CausalConv1dUpdateArgs& args, Workspace, const Stream& stream) {
  ConvParameters p{};
  make_encoder(args.kName, stream)->launch(conv_update_launch(args, p));
}

void run(const StoreKvArgs& args, Workspace, const Stream& stream) {
  StoreParameters p{};
  p.cache = cache_parameters(args.lengths, args.k.dim(0), args.pages, args.k_cache, args.v_cache);
  p.heads = static_cast<std::int32_t>(args.k.dim(1));
  p.k = rows_view(args.k);
  p.v = rows_view(args.v);
  Launch launch = columns_launch(args.kName, args.k.dim(1) * args.k.dim(2));
  launch.set(p).add(args.k).add(args.v).add(args.cu_seqlens).add(args.lengths).add(args.slots).add(args.pages);
  launch.add(args.k_cache).add(args.v_cache);
  launch.constant("kWidth", args.k.dim(2)).constant("kType", args.k.dtype).constant("kCacheType", args.k_cache.dtype);
  launch.constant("kIndexed", args.slots.defined()).constant("kPaged", args.pages.defined());
  launch.grid[1] = static_cast<std::uint32_t>(args.k.dim(0));
  make_encoder(args.kName, stream)->launch(launch);
}

void run(const SplitQkvzArgs& args, Workspace, const Stream& stream) {
  SplitParameters p{};
  p.key = static_cast<std::int32_t>(args.q.dim(2));
  p.values = static_cast<std::int32_t>(args.v.dim(2));
  p.x = rows_view(args.x);
  p.q = rows_view(args.q);
  p.k = rows_view(args.k);
  p.v = rows_view(args.v);
  p.z = rows_view(args.z);
  Launch launch = columns_launch(args.kName, args.x.dim(2));
  launch.set(p).add(args.x).add(args.q).add(args.k).add(args.v).add(args.z);
  launch.constant("kType", args.x.dtype);
  launch.grid[1] = static_cast<std::uint32_t>(args.x.dim(1));
  launch.grid[2] = static_cast<std::uint32_t>(args.x.dim(0));
  make_encoder(args.kName, stream)->launch(launch);
}

template <class Args>
constexpr Kernel<Args> simple(std::string_view name) {
  return {name, always_supported<Args>, no_workspace<Args>, run};
}

constexpr Kernel<CausalConv1dArgs> kConv[] = {simple<CausalConv1dArgs>("channels")};
constexpr Kernel<CausalConv1dUpdateArgs> kConvUpdate[] = {simple<CausalConv1dUpdateArgs>("channels")};
constexpr Kernel<StoreKvArgs> kStoreKv[] = {simple<StoreKvArgs>("tokens")};
constexpr Kernel<SplitQkvzArgs> kSplitQkvz[] = {simple<SplitQkvzArgs>("columns")};

}  // namespace

void add_move_kernels(Backend& backend) {
  std::get<KernelList<CausalConv1dArgs>>(backend.kernels) = kConv;
  std::get<KernelList<CausalConv1dUpdateArgs>>(backend.kernels) = kConvUpdate;
  std::get<KernelList<StoreKvArgs>>(backend.kernels) = kStoreKv;
  std::get<KernelList<SplitQkvzArgs>>(backend.kernels) = kSplitQkvz;
}

}  // namespace thalweg::metal
