// The whole mixture-of-experts block, in four ways. For few tokens,
//
//   matvec  three launches of products of matrix and vector (moe_matvec.h)
//
// and three that share the router and the sum at the end:
//
//   wgmma   gate and up in one pass over the tokens with SwiGLU at its end, then down, both by tiles of many rows
//   stream  the experts' weights pass once, all three by one set of row lists; the shared expert by tiles
//   steps   each matmul by the kernel that mul_mat_id or linear would choose, for any format

#include <algorithm>
#include <cmath>
#include <string>

#include "core/arena.h"
#include "cuda/common/mma.h"
#include "cuda/common/pdl.h"
#include "cuda/common/views.h"
#include "cuda/common/warp.h"
#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/expert_tiles.h"
#include "cuda/experts/moe_matvec.h"
#include "cuda/experts/routing.h"
#include "cuda/experts/stream.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

// ---- y[t,:] = sum_s weight_s products[t,s,:] + sigmoid(x . shared_router) shared[t,:], slots in order

struct Combine {
  const Bf16* products;  // [T,S,D]
  const Bf16* shared;    // [T,D] or null
  const float* weights;  // [T,S]
  int slots;
  Elements x, shared_router, y;
  int columns;
};

constexpr int kCombineThreads = 256;

// The token's sigmoid(x . shared_router), by all of the block's threads.
__device__ float shared_gate(const Combine& p, std::int64_t token) {
  __shared__ float warp_sums[kCombineThreads / kWarpSize];
  const std::int64_t row = p.x.offset(token);
  float logit = 0.0F;
  with_type(p.x.dtype, [&]<class X>(X) {
    with_type(p.shared_router.dtype, [&]<class Router>(Router) {
      const X* x = static_cast<const X*>(p.x.data) + row;
      const Router* router = static_cast<const Router*>(p.shared_router.data);
      const int fours = p.x.fours && p.shared_router.fours ? p.columns / 4 : 0;
      for (int i = static_cast<int>(threadIdx.x); i < fours; i += kCombineThreads) {
        const float4 a = load_four(x + 4 * i);
        const float4 b = load_four(router + 4 * i);
        logit = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, logit))));
      }
      for (int d = 4 * fours + static_cast<int>(threadIdx.x); d < p.columns; d += kCombineThreads) {
        logit = fmaf(to_f32(x[d]), to_f32(router[d]), logit);
      }
    });
  });
  logit = warp_sum(logit);
  if (threadIdx.x % kWarpSize == 0) warp_sums[threadIdx.x / kWarpSize] = logit;
  __syncthreads();
  logit = 0.0F;
  for (const float part : warp_sums) logit += part;
  return 1.0F / (1.0F + expf(-logit));
}

// A block per token.
__global__ void __launch_bounds__(kCombineThreads) combine(const __grid_constant__ Combine p) {
  pdl_trigger_and_wait();
  const std::int64_t token = blockIdx.x;
  const float gate = p.shared != nullptr ? shared_gate(p, token) : 0.0F;
  const Bf16* products = p.products + token * p.slots * p.columns;
  const Bf16* shared = p.shared + token * p.columns;
  const float* weights = p.weights + token * p.slots;
  const std::int64_t to = p.y.offset(token);
  const int eights = p.columns % 8 == 0 ? p.columns / 8 : 0;
  for (int i = static_cast<int>(threadIdx.x); i < eights; i += kCombineThreads) {
    float sum[8] = {};
    const auto add = [&](const Bf16* row, float factor) {
      const uint4 eight = *reinterpret_cast<const uint4*>(row + 8 * i);
      const std::uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 pair = unpack<__nv_bfloat16>(pairs[j]);
        sum[2 * j] = fmaf(factor, pair.x, sum[2 * j]);
        sum[2 * j + 1] = fmaf(factor, pair.y, sum[2 * j + 1]);
      }
    };
#pragma unroll 8
    for (int slot = 0; slot < p.slots; ++slot) {
      add(products + static_cast<std::int64_t>(slot) * p.columns, weights[slot]);
    }
    if (p.shared != nullptr) add(shared, gate);
    with_type(p.y.dtype, [&]<class Y>(Y) {
      Y* y = static_cast<Y*>(p.y.data) + to + 8 * i;
      if (p.y.fours) {
        store_four(y, {sum[0], sum[1], sum[2], sum[3]});
        store_four(y + 4, {sum[4], sum[5], sum[6], sum[7]});
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) y[j] = from_f32<Y>(sum[j]);
      }
    });
  }
  for (int d = 8 * eights + static_cast<int>(threadIdx.x); d < p.columns; d += kCombineThreads) {
    float sum = 0.0F;
    for (int slot = 0; slot < p.slots; ++slot) {
      sum = fmaf(weights[slot], to_f32(products[static_cast<std::int64_t>(slot) * p.columns + d]), sum);
    }
    if (p.shared != nullptr) sum = fmaf(gate, to_f32(shared[d]), sum);
    p.y.store(to + d, sum);
  }
}

// ---- what the ways have in common

bool has_shared(const MoeFfnArgs& args) { return args.shared_gate.defined(); }
std::int64_t tokens(const MoeFfnArgs& args) { return args.x.dim(0); }
std::int64_t pairs(const MoeFfnArgs& args) { return args.x.dim(0) * args.top_k; }
std::int64_t experts(const MoeFfnArgs& args) { return args.router.dim(0); }
std::int64_t hidden(const MoeFfnArgs& args) { return args.x.dim(1); }
std::int64_t inner(const MoeFfnArgs& args) { return args.gate.dim(1); }
std::int64_t shared_inner(const MoeFfnArgs& args) { return has_shared(args) ? args.shared_gate.dim(0) : 0; }

struct Router {
  bool on_hopper;
  int parts;
  float* logits;      // [parts,T,E]
  std::byte* staged;  // of the kernel for Hopper
  std::int32_t* ids;  // [T,S]
  float* weights;     // [T,S]

  Router(const MoeFfnArgs& args, const DeviceProperties& device, Arena& arena)
      : on_hopper(sm90::router_takes(tokens(args), experts(args), hidden(args), device)),
        parts((on_hopper ? sm90::router_parts : router_parts)(tokens(args), experts(args), hidden(args),
                                                              device.multiprocessors)),
        logits(arena.take<float>(parts * tokens(args) * experts(args))),
        staged(arena.take<std::byte>(on_hopper ? sm90::staged_router_bytes(experts(args), hidden(args)) : 0)),
        ids(arena.take<std::int32_t>(pairs(args))),
        weights(arena.take<float>(pairs(args))) {}

  ConstTensor id_tensor(const MoeFfnArgs& args) const {
    return ConstTensor(ids, DType::kI32, {tokens(args), args.top_k}, args.x.device);
  }

  void run(const MoeFfnArgs& args, const DeviceProperties& device, cudaStream_t stream) const {
    if (on_hopper) {
      sm90::launch_router_logits(args.x, args.router, staged, logits, parts, device, stream, args.kName);
    } else {
      launch_router_logits(args.x, args.router, logits, parts, device, stream, args.kName);
    }
    RouterLogits sums;
    sums.logits = elements(Tensor(logits, DType::kF32, {tokens(args), experts(args)}, args.x.device));
    sums.parts = parts;
    sums.part_stride = tokens(args) * experts(args);
    sums.tokens = tokens(args);
    sums.experts = static_cast<int>(experts(args));
    launch_route(sums, {ids, args.top_k, weights, args.top_k, args.top_k, args.renormalize}, device, stream,
                 args.kName);
  }
};

void run_combine(const MoeFfnArgs& args, const Bf16* products, const float* weights, const Bf16* shared,
                 const DeviceProperties& device, cudaStream_t stream) {
  Combine p{};
  p.products = products;
  p.shared = has_shared(args) ? shared : nullptr;
  p.weights = weights;
  p.slots = args.top_k;
  p.x = elements(args.x);
  if (has_shared(args)) p.shared_router = elements(args.shared_router);
  p.y = elements(args.y);
  p.columns = static_cast<int>(hidden(args));
  pdl_launch(combine, dim3(static_cast<unsigned>(tokens(args))), kCombineThreads, 0, device, stream, args.kName, p);
}

std::string supports_router(const MoeFfnArgs& args) {
  if (!is_float(args.router.dtype)) return "takes a router of F32, F16 or BF16";
  if (experts(args) > kMostRoutedExperts) return "takes at most " + std::to_string(kMostRoutedExperts) + " experts";
  return {};
}

// ---- few tokens

struct MatvecPlan {
  MoeMatvecSizes sizes;
  float* logits;
  uint4* x_units;
  uint4* activated;
  std::int32_t* ids;
  float* weights;
  float* shared_products;

  MatvecPlan(const MoeFfnArgs& args, Arena arena)
      : sizes{static_cast<int>(tokens(args)),  static_cast<int>(hidden(args)),
              static_cast<int>(experts(args)), args.top_k,
              static_cast<int>(inner(args)),   static_cast<int>(shared_inner(args))},
        logits(arena.take<float>(tokens(args) * sizes.logits())),
        x_units(arena.take<uint4>(tokens(args) * (sizes.hidden / 32) * kUnitPieces)),
        activated(arena.take<uint4>(tokens(args) * sizes.inner_units() * kUnitPieces)),
        ids(arena.take<std::int32_t>(pairs(args))),
        weights(arena.take<float>(tokens(args) * sizes.all_slots())),
        shared_products(arena.take<float>(has_shared(args) ? tokens(args) * hidden(args) : 0)),
        bytes(arena.used()) {}

  std::size_t bytes;
};

// Rows of which shared memory holds a few for each warp.
bool fits_ring(const ConstTensor& weight, const DeviceProperties& device) {
  const std::int64_t k = weight.dim(weight.rank - 1);
  const std::int64_t rows = kWarpSize / row_lanes(static_cast<int>(k / 32));  // at a time
  return rows * bytes_of(weight.dtype, k) <= most_stage_bytes(device);
}

std::string supports_matvec(const MoeFfnArgs& args, const Stream& stream) {
  if (!is_float(args.router.dtype)) return "takes a router of F32, F16 or BF16";
  if (experts(args) > kMostMatvecExperts) return "takes at most " + std::to_string(kMostMatvecExperts) + " experts";
  if (args.top_k > kMostMatvecSlots) return "takes at most " + std::to_string(kMostMatvecSlots) + " experts of a token";
  if (has_shared(args) && args.shared_gate.dtype != args.shared_up.dtype) {
    return "takes shared_gate and shared_up of one format";
  }
  if (tokens(args) > 65535) return "takes at most 65535 tokens";
  if (tokens(args) * (args.top_k * inner(args) + shared_inner(args)) >= std::int64_t{1} << 31) {
    return "takes fewer than 2^31 inner activations";
  }
  for (const std::int64_t size : {hidden(args), inner(args), shared_inner(args)}) {
    if (size % 32 != 0) return "takes sizes that are multiples of 32";
  }
  for (const ConstTensor* weight :
       {&args.gate, &args.up, &args.down, &args.shared_gate, &args.shared_up, &args.shared_down}) {
    if (!weight->defined()) continue;
    const std::string reason = is_block_format(weight->dtype) ? aligned_blocks(*weight) : aligned_rows(*weight);
    if (!reason.empty()) return reason;
    const int last = weight->rank - 1;
    if (weight->stride(last - 1) != weight->dim(last)) return "takes matrices whose rows lie together";
    if (!fits_ring(*weight, properties(stream.device.index))) return "has too little shared memory for rows this long";
  }
  return {};
}

std::size_t matvec_workspace(const MoeFfnArgs& args, const Stream&) { return MatvecPlan(args, Arena()).bytes; }

WeightRows weight_rows(const ConstTensor& weight) {
  WeightRows rows;
  if (!weight.defined()) return rows;
  rows.data = static_cast<const std::uint8_t*>(weight.data);
  rows.expert_bytes = weight.rank == 3 ? bytes_of(weight.dtype, weight.stride(0)) : 0;
  rows.row_bytes = static_cast<int>(bytes_of(weight.dtype, weight.dim(weight.rank - 1)));
  rows.type = weight.dtype;
  return rows;
}

void run_matvec_launches(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DeviceProperties& device = properties(stream.device.index);
  const MatvecPlan plan(args, Arena(workspace));
  MoeMatvec p{};
  p.sizes = plan.sizes;
  p.renormalize = args.renormalize;
  constexpr std::int64_t kFetchedBytes = 16 << 20;
  p.fetch_down = pairs(args) * bytes_of(args.down.dtype, inner(args) * hidden(args)) <= kFetchedBytes;
  p.x = elements(args.x);
  p.router = elements(args.router);
  if (has_shared(args)) p.shared_router = elements(args.shared_router);
  p.y = elements(args.y);
  p.gate = weight_rows(args.gate);
  p.up = weight_rows(args.up);
  p.down = weight_rows(args.down);
  p.shared_gate = weight_rows(args.shared_gate);
  p.shared_up = weight_rows(args.shared_up);
  p.shared_down = weight_rows(args.shared_down);
  p.logits = plan.logits;
  p.x_units = plan.x_units;
  p.activated = plan.activated;
  p.ids = plan.ids;
  p.weights = plan.weights;
  p.shared_products = plan.shared_products;
  launch_moe_router(p, device, native(stream));
  launch_moe_gate_up(p, device, native(stream));
  launch_moe_down(p, device, native(stream));
}

// ---- by tiles

// The two matmuls around SwiGLU; `first` and `second` know their rows.
void run_gated(const ConstTensor& gate, const ConstTensor& up, const ConstTensor& down, TiledMatmul first,
               TiledMatmul second, std::uint16_t* activated, Bf16* products, const DeviceProperties& device,
               cudaStream_t stream) {
  first.up = weight_view(up);
  first.y = activated;
  sm90::launch_tiled_matmul(first, gate.dtype, true, device, stream, MoeFfnArgs::kName);
  second.y = products;
  second.y_dtype = DType::kBF16;
  second.y_token_stride = second.n;
  sm90::launch_tiled_matmul(second, down.dtype, false, device, stream, MoeFfnArgs::kName);
}

struct SharedTiles {
  std::uint16_t* activated;  // staged [T,J]
  Bf16* products;            // [T,D]

  SharedTiles(const MoeFfnArgs& args, Arena& arena)
      : activated(arena.take<std::uint16_t>(has_shared(args) ? tokens(args) * staged_columns(shared_inner(args)) : 0)),
        products(arena.take<Bf16>(has_shared(args) ? tokens(args) * hidden(args) : 0)) {}

  // x is staged.
  void run(const MoeFfnArgs& args, const std::uint16_t* x, const DeviceProperties& device, cudaStream_t stream) const {
    TiledMatmul first = tiled_product(args.shared_gate, x);
    TiledMatmul second = tiled_product(args.shared_down, activated);
    first.num_rows = second.num_rows = static_cast<int>(tokens(args));
    first.tile_tokens = choose_tile_tokens(tokens(args), 2 * shared_inner(args), device.multiprocessors);
    second.tile_tokens = choose_tile_tokens(tokens(args), hidden(args), device.multiprocessors);
    run_gated(args.shared_gate, args.shared_up, args.shared_down, first, second, activated, products, device, stream);
  }
};

std::string shared_tiles_reason(const MoeFfnArgs& args, const DeviceProperties& device) {
  if (!has_shared(args)) return {};
  if (args.shared_gate.dtype != args.shared_up.dtype) return "takes shared_gate and shared_up of one format";
  std::string reason;
  for (const ConstTensor* weight : {&args.shared_gate, &args.shared_up, &args.shared_down}) {
    if (reason.empty()) reason = tiled_reason(*weight, device);
  }
  return reason;
}

struct TiledPlan {
  Router router;
  ExpertTiles tiles;
  SharedTiles shared;
  std::uint16_t* x;          // staged [T,D]
  std::uint16_t* activated;  // staged [T*S,I]
  Bf16* products;            // [T*S,D]

  TiledPlan(const MoeFfnArgs& args, const DeviceProperties& device, Arena arena)
      : router(args, device, arena),
        tiles(experts(args), pairs(args), arena),
        shared(args, arena),
        x(arena.take<std::uint16_t>(tokens(args) * staged_columns(hidden(args)))),
        activated(arena.take<std::uint16_t>(pairs(args) * staged_columns(inner(args)))),
        products(arena.take<Bf16>(pairs(args) * hidden(args))),
        bytes(arena.used()) {}

  std::size_t bytes;
};

std::string supports_tiles(const MoeFfnArgs& args, const Stream& stream) {
  const DeviceProperties& device = properties(stream.device.index);
  std::string reason = supports_router(args);
  for (const ConstTensor* weight : {&args.gate, &args.up, &args.down}) {
    if (reason.empty()) reason = tiled_reason(*weight, device);
  }
  if (reason.empty()) reason = shared_tiles_reason(args, device);
  if (reason.empty() && pairs(args) > kMostTiledRows) reason = "takes at most 2^30 pairs of token and slot";
  return reason;
}

std::size_t tiles_workspace(const MoeFfnArgs& args, const Stream& stream) {
  return TiledPlan(args, properties(stream.device.index), Arena()).bytes;
}

void run_tiles(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DeviceProperties& device = properties(stream.device.index);
  const cudaStream_t queue = native(stream);
  const TiledPlan plan(args, device, Arena(workspace));
  plan.router.run(args, device, queue);
  prepare_tiles(plan.tiles.lists, expert_ids(plan.router.id_tensor(args), experts(args), {}), args.x, plan.x, stream,
                args.kName);
  TiledMatmul first = tiled_product(args.gate, plan.x);
  plan.tiles.use(first);
  first.pairs_per_x_row = args.top_k;
  TiledMatmul second = tiled_product(args.down, plan.activated);
  plan.tiles.use(second);
  run_gated(args.gate, args.up, args.down, first, second, plan.activated, plan.products, device, queue);
  if (has_shared(args)) plan.shared.run(args, plan.x, device, queue);
  run_combine(args, plan.products, plan.router.weights, plan.shared.products, device, queue);
}

// ---- by streaming the experts' weights

// Arguments of the experts' product of x.
MulMatIdArgs expert_product(const MoeFfnArgs& args, const ConstTensor& weight, const ConstTensor& x,
                            const ConstTensor& ids, void* y, DType dtype) {
  MulMatIdArgs product;
  product.weight = weight;
  product.x = x;
  product.expert_ids = ids;
  product.y = Tensor(y, dtype, {tokens(args), args.top_k, weight.dim(1)}, args.x.device);
  product.precision = args.precision;
  return product;
}

struct StreamedPlan {
  Router router;
  SharedTiles shared;
  std::uint16_t* staged_x;  // [T,D], of the shared expert
  float* gates;             // [T,S,I]
  float* ups;               // [T,S,I]
  Bf16* products;           // [T,S,D]
  StreamPlan gate_up;       // lists and activations of both
  StreamPlan down;

  StreamedPlan(const MoeFfnArgs& args, const DeviceProperties& device, Arena arena)
      : router(args, device, arena),
        shared(args, arena),
        staged_x(arena.take<std::uint16_t>(has_shared(args) ? tokens(args) * staged_columns(hidden(args)) : 0)),
        gates(arena.take<float>(pairs(args) * inner(args))),
        ups(arena.take<float>(pairs(args) * inner(args))),
        products(arena.take<Bf16>(pairs(args) * hidden(args))),
        gate_up(place(args.x, args.gate, args, arena)),
        down(place(inner_tensor(args, gates), args.down, args, arena)),
        bytes(arena.used()) {}

  static StreamPlan place(const ConstTensor& x, const ConstTensor& weight, const MoeFfnArgs& args, Arena& arena) {
    const auto size = static_cast<std::int64_t>(plan_stream(x, weight, pairs(args), nullptr).experts.bytes);
    return plan_stream(x, weight, pairs(args), arena.take<std::byte>(size));
  }
  static Tensor inner_tensor(const MoeFfnArgs& args, float* data) {
    return Tensor(data, DType::kF32, {tokens(args), args.top_k, inner(args)}, args.x.device);
  }

  std::size_t bytes;
};

std::string supports_streaming(const MoeFfnArgs& args, const Stream& stream) {
  std::string reason = supports_router(args);
  for (const ConstTensor* weight : {&args.gate, &args.up, &args.down}) {
    if (reason.empty()) reason = stream_supports(*weight, pairs(args));
  }
  if (reason.empty() && args.gate.dtype != args.up.dtype) reason = "takes gate and up of one format";
  if (reason.empty()) reason = shared_tiles_reason(args, properties(stream.device.index));
  return reason;
}

std::size_t streaming_workspace(const MoeFfnArgs& args, const Stream& stream) {
  return StreamedPlan(args, properties(stream.device.index), Arena()).bytes;
}

void run_streaming(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DeviceProperties& device = properties(stream.device.index);
  const cudaStream_t queue = native(stream);
  StreamedPlan plan(args, device, Arena(workspace));
  plan.router.run(args, device, queue);
  const ConstTensor ids = plan.router.id_tensor(args);
  const auto product = [&](const ConstTensor& weight, const ConstTensor& x, void* y, DType dtype) {
    return expert_matmul(expert_product(args, weight, x, ids, y, dtype));
  };
  const Tensor gates = StreamedPlan::inner_tensor(args, plan.gates);
  const Tensor ups = StreamedPlan::inner_tensor(args, plan.ups);
  const ExpertMatmul gate = product(args.gate, args.x, plan.gates, DType::kF32);
  prepare_experts(plan.gate_up.experts, gate.ids, args.x, stream, args.kName);
  launch_stream(plan.gate_up, gate, stream, args.kName);
  launch_stream(plan.gate_up, product(args.up, args.x, plan.ups, DType::kF32), stream, args.kName);
  const ExpertMatmul down = product(args.down, gates, plan.products, DType::kBF16);
  // Formats may cut the same lists into other items.
  const bool same_items = plan.down.kernel.item_rows == plan.gate_up.kernel.item_rows;
  if (same_items) plan.down.experts.lists = plan.gate_up.experts.lists;
  prepare_gated(plan.down.experts, same_items, down.ids, gates, ups, stream, args.kName);
  launch_stream(plan.down, down, stream, args.kName);
  if (has_shared(args)) {
    prepare_tiles({}, {}, args.x, plan.staged_x, stream, args.kName);
    plan.shared.run(args, plan.staged_x, device, queue);
  }
  run_combine(args, plan.products, plan.router.weights, plan.shared.products, device, queue);
}

// ---- step by step

// The kernels of other operations, of which the preferred one runs.
template <class Args>
std::string step_reason(KernelList<Args> kernels, const Args& args, const Stream& stream) {
  std::string reason = "has no kernel";
  for (const Kernel<Args>& kernel : kernels) {
    reason = kernel.supports(args, stream);
    if (reason.empty()) return {};
  }
  return std::string(Args::kName) + " " + reason;
}
template <class Args>
std::size_t step_workspace(KernelList<Args> kernels, const Args& args, const Stream& stream) {
  // Addresses may decide which kernel runs, and are not known yet.
  std::size_t most = 0;
  for (const Kernel<Args>& kernel : kernels) {
    if (kernel.supports(args, stream).empty()) most = std::max(most, kernel.workspace(args, stream));
  }
  return most;
}
template <class Args>
void run_step(KernelList<Args> kernels, const Args& args, Workspace workspace, const Stream& stream) {
  const Kernel<Args>* kernel = make_plan(kernels, args, stream).kernel;
  if (kernel != nullptr) kernel->run(args, workspace, stream);
}

// All steps' arguments, in order, on tensors in the workspace.
struct Steps {
  Router router;
  float* gates;           // [T,S,I]
  float* ups;             // [T,S,I]
  Bf16* products;         // [T,S,D]
  float* shared_gates;    // [T,J]
  float* shared_ups;      // [T,J]
  Bf16* shared_products;  // [T,D]
  Workspace scratch;

  Steps(const MoeFfnArgs& args, const Stream& stream, Arena arena)
      : router(args, properties(stream.device.index), arena),
        gates(arena.take<float>(pairs(args) * inner(args))),
        ups(arena.take<float>(pairs(args) * inner(args))),
        products(arena.take<Bf16>(pairs(args) * hidden(args))),
        shared_gates(arena.take<float>(tokens(args) * shared_inner(args))),
        shared_ups(arena.take<float>(tokens(args) * shared_inner(args))),
        shared_products(arena.take<Bf16>(has_shared(args) ? tokens(args) * hidden(args) : 0)) {
    for_each(args, [&](const auto& kernels, const auto& step) {
      scratch.bytes = std::max(scratch.bytes, step_workspace(kernels, step, stream));
    });
    scratch.data = arena.take<std::byte>(static_cast<std::int64_t>(scratch.bytes));
    bytes = arena.used();
  }
  std::size_t bytes = 0;

  template <class Body>
  void for_each(const MoeFfnArgs& args, Body&& body) const {
    const Device device = args.x.device;
    const std::int64_t t = tokens(args);
    const std::int64_t s = args.top_k;
    const auto experts_of = [&](const ConstTensor& weight, const ConstTensor& x, void* y, DType dtype) {
      body(mul_mat_id_kernels(), expert_product(args, weight, x, router.id_tensor(args), y, dtype));
    };
    const auto linear_of = [&](const ConstTensor& weight, const ConstTensor& x, void* y, DType dtype) {
      LinearArgs step;
      step.weight = weight;
      step.x = x;
      step.y = Tensor(y, dtype, {t, weight.dim(0)}, device);
      step.precision = args.precision;
      body(linear_kernels(), step);
    };
    const auto activate = [&](float* gate, float* up, std::int64_t rows, std::int64_t columns) {
      SwigluArgs step;
      step.gate = ConstTensor(gate, DType::kF32, {rows, columns}, device);
      step.up = ConstTensor(up, DType::kF32, {rows, columns}, device);
      step.y = Tensor(gate, DType::kF32, {rows, columns}, device);
      body(swiglu_kernels(), step);
    };
    experts_of(args.gate, args.x, gates, DType::kF32);
    experts_of(args.up, args.x, ups, DType::kF32);
    activate(gates, ups, t * s, inner(args));
    experts_of(args.down, ConstTensor(gates, DType::kF32, {t, s, inner(args)}, device), products, DType::kBF16);
    if (!has_shared(args)) return;
    linear_of(args.shared_gate, args.x, shared_gates, DType::kF32);
    linear_of(args.shared_up, args.x, shared_ups, DType::kF32);
    activate(shared_gates, shared_ups, t, shared_inner(args));
    linear_of(args.shared_down, ConstTensor(shared_gates, DType::kF32, {t, shared_inner(args)}, device),
              shared_products, DType::kBF16);
  }
};

std::string supports_steps(const MoeFfnArgs& args, const Stream& stream) {
  std::string reason = supports_router(args);
  if (reason.empty()) {
    Steps(args, stream, Arena()).for_each(args, [&](const auto& kernels, const auto& step) {
      if (reason.empty()) reason = step_reason(kernels, step, stream);
    });
  }
  return reason;
}

std::size_t steps_workspace(const MoeFfnArgs& args, const Stream& stream) { return Steps(args, stream, Arena()).bytes; }

void run_steps(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DeviceProperties& device = properties(stream.device.index);
  const Steps steps(args, stream, Arena(workspace));
  steps.router.run(args, device, native(stream));
  steps.for_each(args, [&](const auto& kernels, const auto& step) { run_step(kernels, step, steps.scratch, stream); });
  run_combine(args, steps.products, steps.router.weights, steps.shared_products, device, native(stream));
}

// ---- which is the fastest

// Of more tokens those of an expert share its weights.
constexpr std::int64_t kMatvecTokens = 32;
// Where an expert has fewer rows on average, most of a tile would be empty.
constexpr std::int64_t kTiledPairs = 24;

std::string tiles_yield(const MoeFfnArgs& args, const Stream& stream) {
  if (pairs(args) >= kTiledPairs * experts(args)) return {};
  if (!supports_streaming(args, stream).empty() && !supports_steps(args, stream).empty()) return {};
  return "fewer than " + std::to_string(kTiledPairs) + " pairs of token and slot per expert: tiles would be empty";
}

std::string matvec_yields(const MoeFfnArgs& args, const Stream& stream) {
  if (tokens(args) <= kMatvecTokens) return {};
  if (!supports_tiles(args, stream).empty() && !supports_steps(args, stream).empty()) return {};
  return "more than " + std::to_string(kMatvecTokens) + " tokens: those of an expert share its weights";
}

}  // namespace

KernelList<MoeFfnArgs> moe_ffn_kernels() {
  static constexpr Kernel<MoeFfnArgs> kKernels[] = {
      {"matvec", supports_matvec, matvec_workspace, run_matvec_launches, nullptr, Arithmetic::k16Bit, matvec_yields},
      {"wgmma", supports_tiles, tiles_workspace, run_tiles, nullptr, Arithmetic::k16Bit, tiles_yield},
      {"stream", supports_streaming, streaming_workspace, run_streaming, nullptr, Arithmetic::k16Bit},
      {"steps", supports_steps, steps_workspace, run_steps, nullptr, Arithmetic::k16Bit},
  };
  return kKernels;
}

}  // namespace thalweg::cu
