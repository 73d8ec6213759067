// gated_rms_norm, a warp for each row. Kernel rows reads four elements at a time and keeps a row in registers between
// the sum of squares and the product; rows_strided reads x twice.

#include <algorithm>
#include <cstdint>

#include "cuda/common/packed.h"
#include "cuda/common/pdl.h"
#include "cuda/common/tensor_view.h"
#include "cuda/gated_delta/rule.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/tuning.h"

namespace thalweg::cu {
namespace {

constexpr int kWarps = 8;
constexpr int kBlocksPerMultiprocessor = 8;  // all that fit at once
constexpr int kMaxFours = 8;                 // of a lane: rows of up to 1024 elements

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
};

__device__ inline float gate(float z) { return z * sigmoid(z); }

__global__ void __launch_bounds__(kWarps* kWarpSize) strided_kernel(const __grid_constant__ GatedNorm p) {
  pdl_trigger_and_wait();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize; row < p.rows;
       row += step) {
    const std::int64_t t = row / p.heads;
    const std::int64_t h = row % p.heads;
    const std::int64_t x_row = p.x.offset(t, h);
    const std::int64_t z_row = p.z.offset(t, h);
    const std::int64_t y_row = p.y.offset(t, h);
    float squares = 0.0F;
    for (int i = lane; i < p.width; i += kWarpSize) {
      const float value = p.x.load(x_row + i);
      squares = fmaf(value, value, squares);
    }
    const float factor = p.factor(squares);
    for (int i = lane; i < p.width; i += kWarpSize) {
      p.y.store(y_row + i, p.x.load(x_row + i) * factor * p.weight.load(i) * gate(p.z.load(z_row + i)));
    }
  }
}

// A row has up to kFours times 4 x 32 elements; To is T or float. The loads of the next row are in flight during the
// arithmetic of this one.
template <class T, class To, int kFours>
__global__ void __launch_bounds__(kWarps* kWarpSize) fours_kernel(const __grid_constant__ GatedNorm p) {
  using Raw = Packed<T, 4>;
  pdl_trigger_and_wait();
  const int first = 4 * (static_cast<int>(threadIdx.x) % kWarpSize);
  const auto column = [&](int i) { return first + i * 4 * kWarpSize; };
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;

  Raw next_x[kFours] = {};
  Raw next_z[kFours] = {};
  const auto fetch = [&](std::int64_t from) {
    if (from >= p.rows) return;
    const std::int64_t t = from / p.heads;
    const std::int64_t h = from % p.heads;
    const T* x = static_cast<const T*>(p.x.data) + p.x.offset(t, h);
    const T* z = static_cast<const T*>(p.z.data) + p.z.offset(t, h);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (column(i) < p.width) {
        next_x[i] = Raw::read(x + column(i));
        next_z[i] = Raw::read(z + column(i));
      }
    }
  };
  fetch(row);
  float weight[kFours][4];
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    std::uint32_t raw[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) raw[j] = column(i) < p.width ? p.weight.read(column(i) + j) : 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) weight[i][j] = p.weight.convert(raw[j]);
  }
  for (; row < p.rows; row += step) {
    float x[kFours][4];
    float z[kFours][4];
    float squares = 0.0F;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      next_x[i].unpack(x[i]);
      next_z[i].unpack(z[i]);
    }
    fetch(row + step);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) squares = fmaf(x[i][j], x[i][j], squares);
    }
    const float factor = p.factor(squares);
    To* y = static_cast<To*>(p.y.data) + p.y.offset(row / p.heads, row % p.heads);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (column(i) >= p.width) continue;
      float result[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) result[j] = x[i][j] * factor * weight[i][j] * gate(z[i][j]);
      store_four(y + column(i), {result[0], result[1], result[2], result[3]});
    }
  }
}

using GatedNormKernel = void (*)(GatedNorm);

template <class T, class To>
GatedNormKernel fours_of(int width) {
  const int fours = (width + 4 * kWarpSize - 1) / (4 * kWarpSize);
  if (fours <= 1) return fours_kernel<T, To, 1>;
  if (fours <= 2) return fours_kernel<T, To, 2>;
  if (fours <= 4) return fours_kernel<T, To, 4>;
  return fours_kernel<T, To, kMaxFours>;
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
  pdl_launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kWarps * kWarpSize), 0, device, native(stream),
             args.kName, p);
}

std::string fours_supports(const GatedRmsNormArgs& args, const Stream&) {
  if (args.x.dim(2) % 4 != 0) return "needs D to be a multiple of 4";
  if (args.x.dim(2) > kMaxFours * 4 * kWarpSize) return "needs D to be at most 1024";
  const bool aligned = elements(args.x).fours && elements(args.z).fours && elements(args.y).fours;
  return aligned ? "" : "needs rows aligned to four elements";
}

std::string strided_supports(const GatedRmsNormArgs& args, const Stream&) {
  return args.x.dim(2) < std::int64_t{1} << 31 ? "" : "needs rows of fewer than 2^31 elements";
}

void run_fours(const GatedRmsNormArgs& args, Workspace, const Stream& stream) {
  launch(fours_of(args.x.dtype, args.y.dtype, static_cast<int>(args.x.dim(2))), args, stream);
}

void run_strided(const GatedRmsNormArgs& args, Workspace, const Stream& stream) {
  launch(strided_kernel, args, stream);
}

double megabytes(const GatedRmsNormArgs& args) {
  const auto bytes = [](const ConstTensor& tensor) {
    return static_cast<double>(bytes_of(tensor.dtype, tensor.size()));
  };
  return 1e-6 * (bytes(args.x) + bytes(args.z) + bytes(args.y));
}

double fours_cost(const GatedRmsNormArgs& args, const Stream&) {
  return tuning::gated_delta::kNormCall + megabytes(args) * tuning::gated_delta::kNormMegabyte;
}

double strided_cost(const GatedRmsNormArgs& args, const Stream&) {
  return tuning::gated_delta::kStridedNormCall + megabytes(args) * tuning::gated_delta::kStridedNormMegabyte;
}

constexpr Kernel<GatedRmsNormArgs> kGatedRmsNorm[] = {
    {"rows", fours_supports, no_workspace<GatedRmsNormArgs>, run_fours, nullptr, Arithmetic::kF32, fours_cost},
    {"rows_strided", strided_supports, no_workspace<GatedRmsNormArgs>, run_strided, nullptr, Arithmetic::kF32,
     strided_cost}};

}  // namespace

KernelList<GatedRmsNormArgs> gated_rms_norm_kernels() { return kGatedRmsNorm; }

}  // namespace thalweg::cu
