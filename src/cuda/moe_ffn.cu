// The whole mixture-of-experts block, in three ways. For few tokens,
//
//   matvec  three launches of products of matrix and vector (moe_matvec.h)
//
// and two that share the router and the sum at the end:
//
//   wgmma   gate and up in one pass over the tokens with SwiGLU at its end, then down, both by tiles of many rows
//   steps   each matmul by the kernel that mul_mat_id or linear would choose, for any format
//
// `tiles` and `slots` are wgmma and matvec for any number of tokens.

#include <algorithm>
#include <cmath>
#include <string>

#include "core/arena.h"
#include "cuda/device/launch_order.h"
#include "cuda/device/warp.h"
#include "cuda/expert_matmul.h"
#include "cuda/expert_tiles.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/moe_matvec.h"
#include "cuda/routing.h"
#include "cuda/views.h"

namespace thalweg::cu {
namespace {

// ---- y[t,:] = sum_s weight_s products[t,s,:] + sigmoid(x . shared_router) shared[t,:], slots in order

struct Combine {
  const float* products;  // [T,S,D]
  const float* weights;   // [T,S]
  int slots;
  const float* shared;  // [T,D] or null
  Elements x, shared_router, y;
  int columns;
};

constexpr int kCombineThreads = 128;
constexpr int kCombineColumns = 4 * kCombineThreads;

__global__ void __launch_bounds__(kCombineThreads) combine(const __grid_constant__ Combine p) {
  __shared__ float warp_sums[kCombineThreads / kWarpSize];
  wait_for_launch_order();
  const std::int64_t token = blockIdx.x;
  const int first = static_cast<int>(blockIdx.y) * kCombineColumns + static_cast<int>(threadIdx.x) * 4;
  const int count = min(4, p.columns - first);
  const bool whole = p.columns % 4 == 0;
  const auto add = [&](const float* row, float factor, float(&sum)[4]) {
    if (count <= 0) return;
    if (whole) {
      const float4 four = *reinterpret_cast<const float4*>(row + first);
      sum[0] = fmaf(factor, four.x, sum[0]);
      sum[1] = fmaf(factor, four.y, sum[1]);
      sum[2] = fmaf(factor, four.z, sum[2]);
      sum[3] = fmaf(factor, four.w, sum[3]);
    } else {
      for (int i = 0; i < count; ++i) sum[i] = fmaf(factor, row[first + i], sum[i]);
    }
  };
  float sum[4] = {};
#pragma unroll 4
  for (int slot = 0; slot < p.slots; ++slot) {
    const std::int64_t pair = token * p.slots + slot;
    add(p.products + pair * p.columns, p.weights[pair], sum);
  }
  if (p.shared != nullptr) {
    float logit = 0.0F;
    const std::int64_t row = p.x.offset(token);
    for (int d = static_cast<int>(threadIdx.x); d < p.columns; d += kCombineThreads) {
      logit = fmaf(p.x.load(row + d), p.shared_router.load(d), logit);
    }
    logit = warp_sum(logit);
    if (threadIdx.x % kWarpSize == 0) warp_sums[threadIdx.x / kWarpSize] = logit;
    __syncthreads();
    logit = 0.0F;
    for (const float part : warp_sums) logit += part;
    add(p.shared + token * p.columns, 1.0F / (1.0F + expf(-logit)), sum);
  }
  const std::int64_t to = p.y.offset(token) + first;
  for (int i = 0; i < count; ++i) p.y.store(to + i, sum[i]);
}

// ---- what both ways have

bool has_shared(const MoeFfnArgs& args) { return args.shared_gate.defined(); }
std::int64_t tokens(const MoeFfnArgs& args) { return args.x.dim(0); }
std::int64_t pairs(const MoeFfnArgs& args) { return args.x.dim(0) * args.top_k; }
std::int64_t experts(const MoeFfnArgs& args) { return args.router.dim(0); }
std::int64_t hidden(const MoeFfnArgs& args) { return args.x.dim(1); }
std::int64_t inner(const MoeFfnArgs& args) { return args.gate.dim(1); }
std::int64_t shared_inner(const MoeFfnArgs& args) { return has_shared(args) ? args.shared_gate.dim(0) : 0; }

struct Router {
  int parts;
  float* logits;      // [parts,T,E]
  std::int32_t* ids;  // [T,S]
  float* weights;     // [T,S]

  Router(const MoeFfnArgs& args, const DeviceProperties& device, Arena& arena)
      : parts(router_parts(tokens(args), experts(args), hidden(args), device.multiprocessors)),
        logits(arena.take<float>(parts * tokens(args) * experts(args))),
        ids(arena.take<std::int32_t>(pairs(args))),
        weights(arena.take<float>(pairs(args))) {}

  void run(const MoeFfnArgs& args, const DeviceProperties& device, cudaStream_t stream) const {
    launch_router_logits(args.x, args.router, logits, parts, device, stream, args.kName);
    RouterLogits sums;
    sums.logits = elements(Tensor(logits, DType::kF32, {tokens(args), experts(args)}));
    sums.parts = parts;
    sums.part_stride = tokens(args) * experts(args);
    sums.tokens = tokens(args);
    sums.experts = static_cast<int>(experts(args));
    launch_route(sums, {ids, args.top_k, weights, args.top_k, args.top_k, args.renormalize}, device, stream,
                 args.kName);
  }
};

void run_combine(const MoeFfnArgs& args, const float* products, const float* weights, const float* shared,
                 const DeviceProperties& device, cudaStream_t stream) {
  Combine p{};
  p.products = products;
  p.weights = weights;
  p.slots = args.top_k;
  p.shared = has_shared(args) ? shared : nullptr;
  p.x = elements(args.x);
  if (has_shared(args)) p.shared_router = elements(args.shared_router);
  p.y = elements(args.y);
  p.columns = static_cast<int>(hidden(args));
  const dim3 grid(static_cast<unsigned>(tokens(args)),
                  static_cast<unsigned>((p.columns + kCombineColumns - 1) / kCombineColumns));
  launch_early(combine, grid, kCombineThreads, 0, device, stream, args.kName, p);
}

std::string supports_router(const MoeFfnArgs& args) {
  if (!is_float(args.router.dtype)) return "takes a router of F32, F16 or BF16";
  if (experts(args) > kMostRoutedExperts) return "takes at most " + std::to_string(kMostRoutedExperts) + " experts";
  return {};
}

// ---- few tokens

constexpr std::int64_t kMatvecTokens = 32;

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

std::string supports_slots(const MoeFfnArgs& args, const Stream& stream) {
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

std::string supports_few(const MoeFfnArgs& args, const Stream& stream) {
  if (tokens(args) > kMatvecTokens) {
    return "takes at most " + std::to_string(kMatvecTokens) + " tokens: those of an expert share its weights";
  }
  return supports_slots(args, stream);
}

std::size_t slots_workspace(const MoeFfnArgs& args, const Stream&) { return MatvecPlan(args, Arena()).bytes; }

WeightRows weight_rows(const ConstTensor& weight) {
  WeightRows rows;
  if (!weight.defined()) return rows;
  rows.data = static_cast<const std::uint8_t*>(weight.data);
  rows.expert_bytes = weight.rank == 3 ? bytes_of(weight.dtype, weight.stride(0)) : 0;
  rows.row_bytes = static_cast<int>(bytes_of(weight.dtype, weight.dim(weight.rank - 1)));
  rows.type = weight.dtype;
  return rows;
}

void run_slots(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
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

struct TiledPlan {
  Router router;
  ExpertTiles tiles;
  std::uint16_t* x;          // staged [T,D]
  std::uint16_t* activated;  // staged [T*S,I]
  float* products;           // [T*S,D]
  std::uint16_t* shared_activated;
  float* shared_products;

  TiledPlan(const MoeFfnArgs& args, const DeviceProperties& device, Arena arena)
      : router(args, device, arena),
        tiles(experts(args), pairs(args), arena),
        x(arena.take<std::uint16_t>(tokens(args) * staged_columns(hidden(args)))),
        activated(arena.take<std::uint16_t>(pairs(args) * staged_columns(inner(args)))),
        products(arena.take<float>(pairs(args) * hidden(args))),
        shared_activated(arena.take<std::uint16_t>(tokens(args) * staged_columns(shared_inner(args)))),
        shared_products(arena.take<float>(has_shared(args) ? tokens(args) * hidden(args) : 0)),
        bytes(arena.used()) {}

  std::size_t bytes;
};

std::string supports_tiles(const MoeFfnArgs& args, const Stream& stream) {
  const DeviceProperties& device = properties(stream.device.index);
  std::string reason = supports_router(args);
  for (const ConstTensor* weight :
       {&args.gate, &args.up, &args.down, &args.shared_gate, &args.shared_up, &args.shared_down}) {
    if (reason.empty() && weight->defined()) reason = tiled_reason(*weight, device);
  }
  if (reason.empty() && has_shared(args) && args.shared_gate.dtype != args.shared_up.dtype) {
    reason = "takes shared_gate and shared_up of one format";
  }
  if (reason.empty() && pairs(args) > kMostTiledRows) reason = "takes at most 2^30 pairs of token and slot";
  return reason;
}

// As of mul_mat_id: where an expert has few rows, most of a tile would be empty.
constexpr std::int64_t kTiledPairs = 12;  // per expert, on average

std::string supports_many(const MoeFfnArgs& args, const Stream& stream) {
  if (pairs(args) < kTiledPairs * experts(args)) {
    return "takes " + std::to_string(kTiledPairs) + " pairs of token and slot per expert or more";
  }
  return supports_tiles(args, stream);
}

std::size_t tiles_workspace(const MoeFfnArgs& args, const Stream& stream) {
  return TiledPlan(args, properties(stream.device.index), Arena()).bytes;
}

// The two matmuls around SwiGLU; `first` and `second` know their rows.
void run_gated(const ConstTensor& gate, const ConstTensor& up, const ConstTensor& down, TiledMatmul first,
               TiledMatmul second, std::uint16_t* activated, float* products, const DeviceProperties& device,
               cudaStream_t stream) {
  first.up = weight_view(up);
  first.y = activated;
  sm90::launch_tiled_matmul(first, gate.dtype, true, device, stream, MoeFfnArgs::kName);
  second.y = products;
  second.y_dtype = DType::kF32;
  second.y_token_stride = second.n;
  sm90::launch_tiled_matmul(second, down.dtype, false, device, stream, MoeFfnArgs::kName);
}

void run_tiles(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DeviceProperties& device = properties(stream.device.index);
  const cudaStream_t queue = native(stream);
  const TiledPlan plan(args, device, Arena(workspace));
  plan.router.run(args, device, queue);
  const ConstTensor ids(plan.router.ids, DType::kI32, {tokens(args), args.top_k}, args.x.device);
  prepare_tiles(plan.tiles.lists, expert_ids(ids, experts(args), {}), args.x, plan.x, stream, args.kName);

  TiledMatmul first = tiled_product(args.gate, plan.x);
  plan.tiles.use(first);
  first.pairs_per_x_row = args.top_k;
  TiledMatmul second = tiled_product(args.down, plan.activated);
  plan.tiles.use(second);
  run_gated(args.gate, args.up, args.down, first, second, plan.activated, plan.products, device, queue);
  if (has_shared(args)) {
    TiledMatmul shared_first = tiled_product(args.shared_gate, plan.x);
    TiledMatmul shared_second = tiled_product(args.shared_down, plan.shared_activated);
    shared_first.num_rows = shared_second.num_rows = static_cast<int>(tokens(args));
    shared_first.tile_tokens = choose_tile_tokens(tokens(args), 2 * shared_inner(args), device.multiprocessors);
    shared_second.tile_tokens = choose_tile_tokens(tokens(args), hidden(args), device.multiprocessors);
    run_gated(args.shared_gate, args.shared_up, args.shared_down, shared_first, shared_second, plan.shared_activated,
              plan.shared_products, device, queue);
  }
  run_combine(args, plan.products, plan.router.weights, plan.shared_products, device, queue);
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
  const Kernel<Args>* kernel = preferred_kernel(kernels, args, stream);
  if (kernel != nullptr) kernel->run(args, workspace, stream);
}

// All steps' arguments, in order, on tensors in the workspace.
struct Steps {
  Router router;
  float* gates;            // [T,S,I]
  float* ups;              // [T,S,I]
  float* products;         // [T,S,D]
  float* shared_gates;     // [T,J]
  float* shared_ups;       // [T,J]
  float* shared_products;  // [T,D]
  Workspace scratch;

  Steps(const MoeFfnArgs& args, const Stream& stream, Arena arena)
      : router(args, properties(stream.device.index), arena),
        gates(arena.take<float>(pairs(args) * inner(args))),
        ups(arena.take<float>(pairs(args) * inner(args))),
        products(arena.take<float>(pairs(args) * hidden(args))),
        shared_gates(arena.take<float>(tokens(args) * shared_inner(args))),
        shared_ups(arena.take<float>(tokens(args) * shared_inner(args))),
        shared_products(arena.take<float>(has_shared(args) ? tokens(args) * hidden(args) : 0)) {
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
    const auto experts_of = [&](const ConstTensor& weight, const ConstTensor& x, float* y) {
      MulMatIdArgs step;
      step.weight = weight;
      step.x = x;
      step.expert_ids = ConstTensor(router.ids, DType::kI32, {t, s}, device);
      step.y = Tensor(y, DType::kF32, {t, s, weight.dim(1)}, device);
      step.precision = args.precision;
      body(mul_mat_id_kernels(), step);
    };
    const auto linear_of = [&](const ConstTensor& weight, const ConstTensor& x, float* y) {
      LinearArgs step;
      step.weight = weight;
      step.x = x;
      step.y = Tensor(y, DType::kF32, {t, weight.dim(0)}, device);
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
    experts_of(args.gate, args.x, gates);
    experts_of(args.up, args.x, ups);
    activate(gates, ups, t * s, inner(args));
    experts_of(args.down, ConstTensor(gates, DType::kF32, {t, s, inner(args)}, device), products);
    if (!has_shared(args)) return;
    linear_of(args.shared_gate, args.x, shared_gates);
    linear_of(args.shared_up, args.x, shared_ups);
    activate(shared_gates, shared_ups, t, shared_inner(args));
    linear_of(args.shared_down, ConstTensor(shared_gates, DType::kF32, {t, shared_inner(args)}, device),
              shared_products);
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

}  // namespace

KernelList<MoeFfnArgs> moe_ffn_kernels() {
  static constexpr Kernel<MoeFfnArgs> kKernels[] = {
      {"matvec", supports_few, slots_workspace, run_slots, nullptr, Arithmetic::k16Bit},
      {"wgmma", supports_many, tiles_workspace, run_tiles, nullptr, Arithmetic::k16Bit},
      {"steps", supports_steps, steps_workspace, run_steps, nullptr, Arithmetic::k16Bit},
      {"tiles", supports_tiles, tiles_workspace, run_tiles, nullptr, Arithmetic::k16Bit},
      {"slots", supports_slots, slots_workspace, run_slots, nullptr, Arithmetic::k16Bit},
  };
  return kKernels;
}

}  // namespace thalweg::cu
