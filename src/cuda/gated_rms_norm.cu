// gated_rms_norm: a warp for each row. Rows that can be read four elements at a time stay in registers between the sum
// of squares and the product; others are read twice.

#include <algorithm>
#include <cstdint>

#include "cuda/device/launch_order.h"
#include "cuda/device/rule.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/views.h"

namespace thalweg::cu {
namespace {

constexpr int kWarps = 8;
constexpr int kBlocksPerMultiprocessor = 8;  // all that are resident at once
constexpr int kMostFours = 8;                // of a lane: rows of up to 1024 elements stay in registers

struct GatedNorm {
  Elements x, z, weight, y;
  std::int64_t heads = 0;
  std::int64_t rows = 0;
  int width = 0;
  float eps = 0.0F;

  // rsqrt(mean x^2 + eps) of a row, by a whole warp.
  __device__ float factor(float squares) const {
    return 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(width) + eps);
  }

  // body(where the row begins in x, in z, in y) for each row of the warp.
  template <class Body>
  __device__ void for_each_row(Body body) const {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
    for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize; row < rows;
         row += step) {
      const std::int64_t t = row / heads;
      const std::int64_t h = row % heads;
      body(x.offset(t, h), z.offset(t, h), y.offset(t, h));
    }
  }
};

__device__ inline float gate(float z) { return z * sigmoid(z); }

__global__ void __launch_bounds__(kWarps* kWarpSize) single_kernel(const __grid_constant__ GatedNorm p) {
  wait_for_launch_order();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  p.for_each_row([&](std::int64_t x_row, std::int64_t z_row, std::int64_t y_row) {
    float squares = 0.0F;
    for (int i = lane; i < p.width; i += kWarpSize) {
      const float value = p.x.load(x_row + i);
      squares = fmaf(value, value, squares);
    }
    const float factor = p.factor(squares);
    for (int i = lane; i < p.width; i += kWarpSize) {
      p.y.store(y_row + i, p.x.load(x_row + i) * factor * p.weight.load(i) * gate(p.z.load(z_row + i)));
    }
  });
}

// kFours pieces of 4 x 32 elements; To is T or float.
template <class T, class To, int kFours>
__global__ void __launch_bounds__(kWarps* kWarpSize) fours_kernel(const __grid_constant__ GatedNorm p) {
  wait_for_launch_order();
  const int first = 4 * (static_cast<int>(threadIdx.x) % kWarpSize);
  const auto place = [&](int i) { return first + i * 4 * kWarpSize; };
  float4 weight[kFours];
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    std::uint32_t raw[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) raw[j] = place(i) < p.width ? p.weight.read(place(i) + j) : 0;
    weight[i] = {p.weight.convert(raw[0]), p.weight.convert(raw[1]), p.weight.convert(raw[2]),
                 p.weight.convert(raw[3])};
  }
  p.for_each_row([&](std::int64_t x_row, std::int64_t z_row, std::int64_t y_row) {
    const T* x = static_cast<const T*>(p.x.data) + x_row;
    const T* z = static_cast<const T*>(p.z.data) + z_row;
    To* y = static_cast<To*>(p.y.data) + y_row;
    float4 value[kFours];
    float4 gates[kFours];
    float squares = 0.0F;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const bool used = place(i) < p.width;
      value[i] = used ? load_four(x + place(i)) : float4{};
      gates[i] = used ? load_four(z + place(i)) : float4{};
    }
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      squares += value[i].x * value[i].x + value[i].y * value[i].y + value[i].z * value[i].z + value[i].w * value[i].w;
    }
    const float factor = p.factor(squares);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (place(i) >= p.width) continue;
      store_four(
          y + place(i),
          {value[i].x * factor * weight[i].x * gate(gates[i].x), value[i].y * factor * weight[i].y * gate(gates[i].y),
           value[i].z * factor * weight[i].z * gate(gates[i].z), value[i].w * factor * weight[i].w * gate(gates[i].w)});
    }
  });
}

using GatedNormKernel = void (*)(GatedNorm);

template <class T, class To>
GatedNormKernel fours_of(int width) {
  const int fours = (width + 4 * kWarpSize - 1) / (4 * kWarpSize);
  if (fours <= 1) return fours_kernel<T, To, 1>;
  if (fours <= 2) return fours_kernel<T, To, 2>;
  if (fours <= 4) return fours_kernel<T, To, 4>;
  return fours_kernel<T, To, kMostFours>;
}

GatedNormKernel fours_of(DType from, DType to, int width) {
  if (from == DType::kF32) return fours_of<float, float>(width);
  if (from == DType::kBF16) return to == from ? fours_of<Bf16, Bf16>(width) : fours_of<Bf16, float>(width);
  return to == from ? fours_of<F16, F16>(width) : fours_of<F16, float>(width);
}

void launch(GatedNormKernel kernel, const GatedRmsNormArgs& args, const Stream& stream) {
  GatedNorm p;
  p.x = elements(args.x);
  p.z = elements(args.z);
  p.weight = elements(args.weight);
  p.y = elements(args.y);
  p.heads = args.x.dim(1);
  p.rows = args.x.dim(0) * args.x.dim(1);
  p.width = static_cast<int>(args.x.dim(2));
  p.eps = args.eps;
  if (p.rows == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DeviceProperties& device = properties(stream.device.index);
  const std::int64_t blocks =
      std::min<std::int64_t>((p.rows + kWarps - 1) / kWarps, kBlocksPerMultiprocessor * device.multiprocessors);
  launch_early(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kWarps * kWarpSize), 0, device, native(stream),
               args.kName, p);
}

std::string fours_supports(const GatedRmsNormArgs& args, const Stream&) {
  if (args.x.dim(2) % 4 != 0) return "needs D to be a multiple of 4";
  if (args.x.dim(2) > kMostFours * 4 * kWarpSize) return "needs D to be at most 1024";
  const bool aligned = elements(args.x).fours && elements(args.z).fours && elements(args.y).fours;
  return aligned ? "" : "needs rows that begin at a multiple of four elements";
}

std::string single_supports(const GatedRmsNormArgs& args, const Stream&) {
  return args.x.dim(2) < std::int64_t{1} << 31 ? "" : "rows of 2^31 elements or more";
}

void run_fours(const GatedRmsNormArgs& args, Workspace, const Stream& stream) {
  launch(fours_of(args.x.dtype, args.y.dtype, static_cast<int>(args.x.dim(2))), args, stream);
}

void run_single(const GatedRmsNormArgs& args, Workspace, const Stream& stream) { launch(single_kernel, args, stream); }

constexpr Kernel<GatedRmsNormArgs> kGatedRmsNorm[] = {
    {"rows", fours_supports, no_workspace<GatedRmsNormArgs>, run_fours},
    {"rows_strided", single_supports, no_workspace<GatedRmsNormArgs>, run_single}};

}  // namespace

KernelList<GatedRmsNormArgs> gated_rms_norm_kernels() { return kGatedRmsNorm; }

}  // namespace thalweg::cu
