// The last launch of moe_ffn: the sum over slots.

#include "cuda/common/mma.h"
#include "cuda/common/pdl.h"
#include "cuda/common/tensor_view.h"
#include "cuda/common/warp.h"
#include "cuda/experts/moe_ffn.h"

namespace thalweg::cu {
namespace {

template <class Product>
struct Combine {
  const Product* products;  // [T,S,D]
  const Product* shared;    // [T,D] or null
  const float* weights;     // [T,S]
  const std::int32_t* ids;  // [T,S]
  int slots;
  Elements x, shared_router, y;
  int columns;
};

constexpr int kCombineThreads = 256;

// The token's sigmoid(x . shared_router), by all of the block's threads.
template <class Product>
__device__ float shared_gate(const Combine<Product>& p, std::int64_t token) {
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
  for (const float sum : warp_sums) logit += sum;
  return 1.0F / (1.0F + expf(-logit));
}

// sum += factor row[0..7], at an address that is a multiple of 16 bytes.
__device__ inline void add_eight(const Bf16* row, float factor, float (&sum)[8]) {
  const uint4 eight = *reinterpret_cast<const uint4*>(row);
  const std::uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 pair = unpack<__nv_bfloat16>(pairs[j]);
    sum[2 * j] = fmaf(factor, pair.x, sum[2 * j]);
    sum[2 * j + 1] = fmaf(factor, pair.y, sum[2 * j + 1]);
  }
}
__device__ inline void add_eight(const float* row, float factor, float (&sum)[8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 four = load_four(row + 4 * half);
    sum[4 * half] = fmaf(factor, four.x, sum[4 * half]);
    sum[4 * half + 1] = fmaf(factor, four.y, sum[4 * half + 1]);
    sum[4 * half + 2] = fmaf(factor, four.z, sum[4 * half + 2]);
    sum[4 * half + 3] = fmaf(factor, four.w, sum[4 * half + 3]);
  }
}

// A block per token. Without kAll some slots belong to other ranks.
template <class Product, bool kAll>
__global__ void __launch_bounds__(kCombineThreads) combine(const __grid_constant__ Combine<Product> p) {
  pdl_trigger_and_wait();
  const std::int64_t token = blockIdx.x;
  const float gate = p.shared != nullptr ? shared_gate(p, token) : 0.0F;
  const Product* products = p.products + token * p.slots * p.columns;
  const Product* shared = p.shared + token * p.columns;
  const float* weights = p.weights + token * p.slots;
  const auto is_here = [&](int slot) { return kAll || p.ids[token * p.slots + slot] >= 0; };
  const std::int64_t to = p.y.offset(token);
  const int eights = p.columns % 8 == 0 ? p.columns / 8 : 0;
  for (int i = static_cast<int>(threadIdx.x); i < eights; i += kCombineThreads) {
    float sum[8] = {};
#pragma unroll 8
    for (int slot = 0; slot < p.slots; ++slot) {
      if (!is_here(slot)) continue;
      add_eight(products + static_cast<std::int64_t>(slot) * p.columns + 8 * i, weights[slot], sum);
    }
    if (p.shared != nullptr) add_eight(shared + 8 * i, gate, sum);
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
      if (!is_here(slot)) continue;
      sum = fmaf(weights[slot], to_f32(products[static_cast<std::int64_t>(slot) * p.columns + d]), sum);
    }
    if (p.shared != nullptr) sum = fmaf(gate, to_f32(shared[d]), sum);
    p.y.store(to + d, sum);
  }
}

}  // namespace

template <class Product>
void run_combine(const MoeFfnArgs& args, const Product* products, const float* weights, const std::int32_t* ids,
                 const Product* shared, const DeviceProperties& device, cudaStream_t stream) {
  Combine<Product> p{};
  p.products = products;
  p.shared = has_shared(args) ? shared : nullptr;
  p.weights = weights;
  p.ids = ids;
  p.slots = args.top_k;
  p.x = elements(args.x);
  if (has_shared(args)) p.shared_router = elements(args.shared_router);
  p.y = elements(args.y);
  p.columns = static_cast<int>(hidden_size(args));
  const auto kernel = has_all_experts(args) ? combine<Product, true> : combine<Product, false>;
  pdl_launch(kernel, dim3(static_cast<unsigned>(num_tokens(args))), kCombineThreads, 0, device, stream, args.kName, p);
}

template void run_combine(const MoeFfnArgs&, const Bf16*, const float*, const std::int32_t*, const Bf16*,
                          const DeviceProperties&, cudaStream_t);
template void run_combine(const MoeFfnArgs&, const float*, const float*, const std::int32_t*, const float*,
                          const DeviceProperties&, cudaStream_t);

}  // namespace thalweg::cu
