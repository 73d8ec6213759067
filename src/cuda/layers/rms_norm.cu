// rms_norm, with the residual's addition before it. In kernel rows a block has a row in registers between the sum of
// squares and the product, and accesses four elements at a time; in rows_strided a warp has a row and reads it twice.
// A block of rows can sum its row of delta over ranks as it reads it.

#include "cuda/layers/rms_norm.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/common/pdl.h"
#include "cuda/common/tensor_view.h"
#include "cuda/common/warp.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/tuning.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kMostFours = 8;  // of a thread: rows of up to 8192 elements

struct Norm {
  Elements x, delta, weight, sum, y;
  std::int64_t rows = 0;
  int heads = 1;  // rows of a token
  int width = 0;
  float eps = 0.0F;
  float weight_offset = 0.0F;

  __device__ std::int64_t offset(const Elements& tensor, std::int64_t row) const {
    return heads == 1 ? tensor.offset(row) : tensor.offset(row / heads, row % heads);
  }
  __device__ float factor(float squares) const { return 1.0F / sqrtf(squares / static_cast<float>(width) + eps); }
};

// A thread's fours of a row, unconverted, so that all reads are in flight before the first is used.
template <int kFours>
class RawFours {
 public:
  __device__ RawFours(const Elements& tensor, std::int64_t row, int width) : dtype_(tensor.dtype), width_(width) {
    with_type(dtype_, [&]<class T>(T) {
      const T* from = static_cast<const T*>(tensor.data) + row;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        if (column(i) >= width) continue;
        raw_[i] = load_raw_four(from + column(i));
      }
    });
  }
  __device__ void add_to(float (&values)[kFours][4]) const {
    with_type(dtype_, [&]<class T>(T) {
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        if (column(i) >= width_) continue;
        const float4 four = load_four(reinterpret_cast<const T*>(raw_ + i));
        values[i][0] += four.x, values[i][1] += four.y, values[i][2] += four.z, values[i][3] += four.w;
      }
    });
  }

 private:
  __device__ static int column(int i) { return 4 * (static_cast<int>(threadIdx.x) + i * kThreads); }

  uint4 raw_[kFours] = {};
  DType dtype_;
  int width_;
};

template <int kFours>
__device__ void store_fours(const Elements& tensor, std::int64_t row, int width, const float (&values)[kFours][4]) {
  with_type(tensor.dtype, [&]<class T>(T) {
    T* to = static_cast<T*>(tensor.data) + row;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int column = 4 * (static_cast<int>(threadIdx.x) + i * kThreads);
      if (column < width) store_four(to + column, {values[i][0], values[i][1], values[i][2], values[i][3]});
    }
  });
}

// A row of delta is one of several ranks' summands: its block exchanges it with theirs.
template <int kFours>
class SummedDelta {
 public:
  __device__ SummedDelta(const PeerInboxes& peers, const Norm& p, std::int64_t row)
      : call_(peers, static_cast<int>(row)), width_(p.width) {
    const auto* const from = static_cast<const __nv_bfloat16*>(p.delta.data) + p.offset(p.delta, row);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (has(i)) own_[i] = *reinterpret_cast<const uint2*>(from + 4 * item(i));
    }
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (has(i)) call_.send(item(i), own_[i]);
    }
  }
  // Rounded to bf16, as by a sum of its own.
  __device__ void add_to(float (&values)[kFours][4]) const {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (!has(i)) continue;
      ItemSum<__nv_bfloat16> sum;
      sum.add(call_.sum<__nv_bfloat16>(item(i), own_[i]));
#pragma unroll
      for (int j = 0; j < 4; ++j) values[i][j] += sum.sums[j];
    }
  }
  // Behind a barrier that all threads have reached after add_to().
  __device__ void end() const {
    if (threadIdx.x == 0) call_.end();
  }

 private:
  __device__ static int item(int i) { return static_cast<int>(threadIdx.x) + i * kThreads; }
  __device__ bool has(int i) const { return 4 * item(i) < width_; }

  PeerCall call_;
  int width_;
  uint2 own_[kFours] = {};
};

struct NoPeers {};

template <int kFours>
class OwnDelta {
 public:
  __device__ OwnDelta(NoPeers, const Norm& p, std::int64_t row)
      : raw_(p.delta, p.offset(p.delta, row), p.delta.defined() ? p.width : 0) {}
  __device__ void add_to(float (&values)[kFours][4]) const { raw_.add_to(values); }
  __device__ void end() const {}

 private:
  RawFours<kFours> raw_;
};

template <int kFours, class Peers>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const __grid_constant__ Norm p, const __grid_constant__ Peers peers) {
  constexpr bool kSums = std::is_same_v<Peers, PeerInboxes>;
  __shared__ float warp_squares[kWarps];
  float weight[kFours][4] = {};
  RawFours<kFours>(p.weight, 0, p.width).add_to(weight);  // no kernel ahead writes it
  pdl_trigger_and_wait();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  float values[kFours][4] = {};
  std::conditional_t<kSums, SummedDelta<kFours>, OwnDelta<kFours>> delta(peers, p, row);
  RawFours<kFours>(p.x, p.offset(p.x, row), p.width).add_to(values);
  delta.add_to(values);
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) squares = fmaf(values[i][j], values[i][j], squares);
  }
  squares = warp_sum(squares);
  if (threadIdx.x % kWarpSize == 0) warp_squares[threadIdx.x / kWarpSize] = squares;
  if (p.sum.defined()) store_fours(p.sum, p.offset(p.sum, row), p.width, values);
  __syncthreads();
  squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) squares += warp_squares[i];
  const float factor = p.factor(squares);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) values[i][j] = values[i][j] * factor * (weight[i][j] + p.weight_offset);
  }
  store_fours(p.y, p.offset(p.y, row), p.width, values);
  delta.end();
}

__global__ void __launch_bounds__(kThreads) strided_kernel(const __grid_constant__ Norm p) {
  pdl_trigger_and_wait();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const auto row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
  if (row >= p.rows) return;
  const std::int64_t x = p.offset(p.x, row);
  const std::int64_t delta = p.offset(p.delta, row);
  const auto value = [&](int i) { return p.x.load(x + i) + (p.delta.defined() ? p.delta.load(delta + i) : 0.0F); };
  float squares = 0.0F;
  for (int i = lane; i < p.width; i += kWarpSize) squares = fmaf(value(i), value(i), squares);
  const float factor = p.factor(warp_sum(squares));
  const std::int64_t sum = p.offset(p.sum, row);
  const std::int64_t y = p.offset(p.y, row);
  for (int i = lane; i < p.width; i += kWarpSize) {
    const float element = value(i);  // read before what may be the same memory is written
    if (p.sum.defined()) p.sum.store(sum + i, element);
    p.y.store(y + i, element * factor * (p.weight.load(i) + p.weight_offset));
  }
}

Norm norm_of(const RmsNormArgs& args) {
  Norm p;
  p.x = elements(args.x);
  p.delta = elements(args.delta);
  p.weight = elements(args.weight);
  p.sum = elements(args.sum);
  p.y = elements(args.y);
  p.heads = args.x.rank == 3 ? static_cast<int>(args.x.dim(1)) : 1;
  p.rows = args.x.dim(0) * p.heads;
  p.width = static_cast<int>(args.weight.dim(0));
  p.eps = args.eps;
  p.weight_offset = args.weight_plus_one ? 1.0F : 0.0F;
  return p;
}

std::string rows_supports(const RmsNormArgs& args, const Stream&) {
  const std::int64_t width = args.weight.dim(0);
  if (width % 4 != 0) return "needs D to be a multiple of 4";
  if (width > kMostFours * 4 * kThreads) return "needs D to be at most " + std::to_string(kMostFours * 4 * kThreads);
  for (const ConstTensor& tensor : {args.x, args.delta, args.weight, ConstTensor(args.sum), ConstTensor(args.y)}) {
    if (tensor.defined() && !elements(tensor).fours) return "needs rows aligned to four elements";
  }
  return {};
}

std::string strided_supports(const RmsNormArgs& args, const Stream&) {
  return args.weight.dim(0) < std::int64_t{1} << 31 ? "" : "needs rows of fewer than 2^31 elements";
}

template <class Peers>
void launch_rows(const RmsNormArgs& args, const Peers& peers, const Stream& stream) {
  const Norm p = norm_of(args);
  if (p.rows == 0) return;
  const CurrentDevice current(stream, args.kName);
  const int fours = (p.width + 4 * kThreads - 1) / (4 * kThreads);
  void (*kernel)(Norm, Peers) = fours <= 1   ? rows_kernel<1, Peers>
                                : fours <= 2 ? rows_kernel<2, Peers>
                                : fours <= 5 ? rows_kernel<5, Peers>
                                             : rows_kernel<kMostFours, Peers>;
  pdl_launch(kernel, dim3(static_cast<unsigned>(p.rows)), kThreads, 0, properties(stream.device.index), native(stream),
             args.kName, p, peers);
}

void run_rows(const RmsNormArgs& args, Workspace, const Stream& stream) { launch_rows(args, NoPeers(), stream); }

void run_strided(const RmsNormArgs& args, Workspace, const Stream& stream) {
  const Norm p = norm_of(args);
  if (p.rows == 0) return;
  const CurrentDevice current(stream, args.kName);
  pdl_launch(strided_kernel, dim3(static_cast<unsigned>((p.rows + kWarps - 1) / kWarps)), kThreads, 0,
             properties(stream.device.index), native(stream), args.kName, p);
}

// A warp is enough for the short rows of heads.
double rows_cost(const RmsNormArgs& args, const Stream&) {
  return args.weight.dim(0) < tuning::layers::kNormBlockWidth ? tuning::layers::kNormOther : tuning::layers::kNormUsual;
}
double strided_cost(const RmsNormArgs& args, const Stream&) {
  return args.weight.dim(0) < tuning::layers::kNormBlockWidth ? tuning::layers::kNormUsual : tuning::layers::kNormOther;
}

constexpr Kernel<RmsNormArgs> kRmsNorm[] = {
    {"rows", rows_supports, no_workspace<RmsNormArgs>, run_rows, nullptr, Arithmetic::kF32, rows_cost},
    {"rows_strided", strided_supports, no_workspace<RmsNormArgs>, run_strided, nullptr, Arithmetic::kF32,
     strided_cost}};

}  // namespace

bool enqueue_summed_norm(const RmsNormArgs& args, const PeerInboxes& peers, const Stream& stream) {
  const bool fits = args.x.rank == 2 && args.x.dim(0) <= PeerInboxes::kBlocks &&
                    args.x.dim(1) <= 4 * PeerInboxes::kItems && args.delta.dtype == DType::kBF16;
  if (!fits || !rows_supports(args, stream).empty()) return false;
  launch_rows(args, peers, stream);
  return true;
}

KernelList<RmsNormArgs> rms_norm_kernels() { return kRmsNorm; }

}  // namespace thalweg::cu
