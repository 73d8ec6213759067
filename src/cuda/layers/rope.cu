// rope: a block has a token, whose cosines and sines it computes once for all heads, and a warp a head, which it keeps
// in shared memory as f32 between the norm and the rotation.

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

__global__ void __launch_bounds__(kThreads) rope_tokens(const __grid_constant__ Rotation p) {
  extern __shared__ float shared[];
  float* const cosine = shared;
  float* const sine = cosine + p.half;
  float* const row = sine + p.half + threadIdx.x / kWarpSize * p.width;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const auto t = static_cast<std::int64_t>(blockIdx.x);
  pdl_trigger_and_wait();
  for (int i = static_cast<int>(threadIdx.x); i < p.half; i += kThreads) {
    // The frequency is f32 by contract, the angle is not: f32 would be off by whole radians at long contexts.
    const float frequency = p.frequencies != nullptr
                                ? p.frequencies[i]
                                : static_cast<float>(pow(p.theta, -static_cast<double>(i) / p.half));
    double sine_of = 0.0;
    double cosine_of = 0.0;
    sincos(static_cast<double>(p.positions[t]) * static_cast<double>(frequency), &sine_of, &cosine_of);
    cosine[i] = static_cast<float>(p.scale * cosine_of);
    sine[i] = static_cast<float>(p.scale * sine_of);
  }
  __syncthreads();
  for (int head = static_cast<int>(threadIdx.x) / kWarpSize; head < p.heads; head += kWarps) {
    const std::int64_t from = p.x.offset(t, head);
    float squares = 0.0F;
    for (int i = lane; i < p.width; i += kWarpSize) {
      const float value = p.x.load(from + i);
      row[i] = value;
      squares = fmaf(value, value, squares);
    }
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
    __syncwarp();
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
  pdl_launch(rope_tokens, dim3(static_cast<unsigned>(args.x.dim(0))), kThreads,
             static_cast<std::size_t>(shared_floats(args)) * sizeof(float), properties(stream.device.index),
             native(stream), args.kName, p);
}

constexpr Kernel<RopeArgs> kRope[] = {{"tokens", rope_supports, no_workspace<RopeArgs>, run_rope}};

}  // namespace

KernelList<RopeArgs> rope_kernels() { return kRope; }

}  // namespace thalweg::cu
