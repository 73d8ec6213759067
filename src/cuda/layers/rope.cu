// rope: a block has a token and up to kWarps heads, a warp each; it keeps a head in shared memory as f32 between the
// norm and the rotation.

#include <cstdint>

#include "cuda/common/pdl.h"
#include "cuda/common/tensor_view.h"
#include "cuda/common/warp.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr std::int64_t kSharedBytes = 48 * 1024;

struct Rotation {
  Elements x, y, norm_weight;
  const std::int32_t* positions = nullptr;
  const float* frequencies = nullptr;  // null: from theta
  int heads = 0;
  int width = 0;
  int half = 0;
  double theta = 0.0;
  double scale = 0.0;
  float norm_eps = 0.0F;
  float weight_offset = 0.0F;
};

// cosines [half], sines [half], then a row for each warp.
std::int64_t shared_floats(const RopeArgs& args) { return args.rotary_dim + kWarps * args.x.dim(2); }

// The cosine and sine of an angle of any size. The angle is f64, since f32 would be off by whole radians at long
// contexts; what is left of it after quarter turns may be f32.
__device__ inline void turn(double angle, float& cosine, float& sine) {
  constexpr double kQuarters = 0.6366197723675814;  // 2 / pi
  const double quarters = angle * kQuarters;
  const double whole = rint(quarters);
  float cosine_of_rest = 0.0F;
  float sine_of_rest = 0.0F;
  sincospif(0.5F * static_cast<float>(quarters - whole), &sine_of_rest, &cosine_of_rest);
  const auto quadrant = static_cast<unsigned>(static_cast<std::int64_t>(whole)) & 3U;
  const bool odd = (quadrant & 1U) != 0;
  cosine = odd ? sine_of_rest : cosine_of_rest;
  sine = odd ? cosine_of_rest : sine_of_rest;
  if (quadrant == 1 || quadrant == 2) cosine = -cosine;
  if (quadrant >= 2) sine = -sine;
}

// A head to shared memory; returns the lane's sum of squares. Reads are in flight together.
__device__ inline float read_head(const Elements& x, std::int64_t from, int width, float* row) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  constexpr int kEach = 8;
  float squares = 0.0F;
  for (int first = lane; first < width; first += kEach * kWarpSize) {
    std::uint32_t raw[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = first + i * kWarpSize;
      raw[i] = at < width ? x.read(from + at) : 0;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = first + i * kWarpSize;
      const float value = x.convert(raw[i]);
      if (at < width) row[at] = value;
      squares = fmaf(value, value, squares);
    }
  }
  return squares;
}

__global__ void __launch_bounds__(kThreads) rope_tokens(const __grid_constant__ Rotation p) {
  extern __shared__ float shared[];
  float* const cosine = shared;
  float* const sine = cosine + p.half;
  float* const row = sine + p.half + threadIdx.x / kWarpSize * p.width;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const auto t = static_cast<std::int64_t>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  pdl_trigger();
  const auto frequency_of = [&](int i) {
    return p.frequencies != nullptr ? p.frequencies[i]
                                    : static_cast<float>(pow(p.theta, -static_cast<double>(i) / p.half));
  };
  // A thread's first frequency; no kernel ahead writes them. They are f32 by contract.
  const int own = static_cast<int>(threadIdx.x);
  const float first_frequency = own < p.half ? frequency_of(own) : 0.0F;
  pdl_wait();
  const auto position = static_cast<double>(p.positions[t]);
  const float squares = head < p.heads ? read_head(p.x, p.x.offset(t, head), p.width, row) : 0.0F;
  for (int i = own; i < p.half; i += kThreads) {
    const float frequency = i == own ? first_frequency : frequency_of(i);
    float sine_of = 0.0F;
    float cosine_of = 0.0F;
    turn(position * static_cast<double>(frequency), cosine_of, sine_of);
    cosine[i] = static_cast<float>(p.scale * cosine_of);
    sine[i] = static_cast<float>(p.scale * sine_of);
  }
  __syncthreads();
  if (head >= p.heads) return;
  if (p.norm_weight.defined()) {
    const float factor = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(p.width) + p.norm_eps);
    for (int i = lane; i < p.width; i += kWarpSize) row[i] *= factor * (p.norm_weight.load(i) + p.weight_offset);
  }
  __syncwarp();
  const std::int64_t to = p.y.offset(t, head);
  for (int i = lane; i < p.width; i += kWarpSize) {
    float value = row[i];
    if (i < p.half) {
      value = value * cosine[i] - row[i + p.half] * sine[i];
    } else if (i < 2 * p.half) {
      value = value * cosine[i - p.half] + row[i - p.half] * sine[i - p.half];
    }
    p.y.store(to + i, value);
  }
}

std::string rope_supports(const RopeArgs& args, const Stream&) {
  return shared_floats(args) * 4 <= kSharedBytes ? "" : "needs heads of at most 1400 elements";
}

void run_rope(const RopeArgs& args, Workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  Rotation p;
  p.x = elements(args.x);
  p.y = elements(args.y);
  p.norm_weight = elements(args.norm_weight);
  p.positions = static_cast<const std::int32_t*>(args.positions.data);
  p.frequencies = static_cast<const float*>(args.frequencies.data);
  p.heads = static_cast<int>(args.x.dim(1));
  p.width = static_cast<int>(args.x.dim(2));
  p.half = args.rotary_dim / 2;
  p.theta = static_cast<double>(args.theta);
  p.scale = static_cast<double>(args.scale);
  p.norm_eps = args.norm_eps;
  p.weight_offset = args.norm_weight_plus_one ? 1.0F : 0.0F;
  const CurrentDevice current(stream, args.kName);
  const dim3 grid(static_cast<unsigned>(args.x.dim(0)), static_cast<unsigned>((p.heads + kWarps - 1) / kWarps));
  pdl_launch(rope_tokens, grid, kThreads, static_cast<std::size_t>(shared_floats(args)) * sizeof(float),
             properties(stream.device.index), native(stream), args.kName, p);
}

constexpr Kernel<RopeArgs> kRope[] = {{"tokens", rope_supports, no_workspace<RopeArgs>, run_rope}};

}  // namespace

KernelList<RopeArgs> rope_kernels() { return kRope; }

}  // namespace thalweg::cu
