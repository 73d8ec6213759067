#include <algorithm>
#include <cmath>

#include "core/threads.h"
#include "cpu/nn.h"
#include "cpu/nn_vector.h"
#include "cpu/scratch.h"
#include "cpu/tuning.h"
#include "cpu/vector.h"

namespace thalweg::cpu {
namespace {

// Workspace: the frequencies and the norm's weight, which all workers share, then cosines, sines and a row per worker.
std::int64_t worker_floats(const RopeArgs& args) {
  const std::int64_t half = args.rotary_dim / 2;
  return arena_floats(half, half, args.x.dim(2));
}
std::int64_t shared_floats(const RopeArgs& args) {
  return arena_floats(args.rotary_dim / 2, args.norm_weight.defined() ? args.x.dim(2) : 0);
}

std::size_t rope_workspace(const RopeArgs& args, const Stream& stream) {
  return static_cast<std::size_t>(shared_floats(args)) * sizeof(float) + worker_bytes(worker_floats(args), stream);
}

void run_rope(const RopeArgs& args, Workspace workspace, const Stream& stream) {
  const std::int64_t half = args.rotary_dim / 2;
  const std::int64_t width = args.x.dim(2);
  const bool norm = args.norm_weight.defined();
  Arena shared(workspace);
  float* frequencies = shared.take<float>(half);
  float* norm_weight = shared.take<float>(norm ? width : 0);
  const bool given = args.frequencies.defined();
  if (given) std::copy_n(static_cast<const float*>(args.frequencies.data), half, frequencies);
  for (std::int64_t i = 0; i < half && !given; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / args.rotary_dim;
    frequencies[i] = static_cast<float>(std::pow(static_cast<double>(args.theta), exponent));
  }
  if (norm) vector_ops().load(args.norm_weight.dtype, args.norm_weight.data, width, norm_weight);
  for (std::int64_t i = 0; norm && args.norm_weight_plus_one && i < width; ++i) norm_weight[i] += 1.0F;
  const Workspace workers{frequencies + shared_floats(args), 0};
  const auto* positions = static_cast<const std::int32_t*>(args.positions.data);
  const auto scale = static_cast<double>(args.scale);
  const double task_ns =
      static_cast<double>(half) * tuning::kAngleNs + static_cast<double>(args.x.dim(1) * width) * tuning::kElementNs;
  parallel_for(stream, args.x.dim(0), task_ns, [&](std::int64_t t, int worker) {
    Arena scratch = worker_arena(workers, worker_floats(args), worker);
    float* cosine = scratch.take<float>(half);
    float* sine = scratch.take<float>(half);
    float* row = scratch.take<float>(width);
    // In double: at long contexts an f32 product of position and frequency has an error of whole radians.
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(positions[t]) * static_cast<double>(frequencies[i]);
      cosine[i] = static_cast<float>(scale * std::cos(angle));
      sine[i] = static_cast<float>(scale * std::sin(angle));
    }
    for (std::int64_t h = 0; h < args.x.dim(1); ++h) {
      vector_ops().load(args.x.dtype, args.x.row(t, h), width, row);
      if (norm) {
        nn_vector_ops().scale_multiply(inverse_rms(row, width, args.norm_eps), row, norm_weight, width, row);
      }
      nn_vector_ops().rotate(cosine, sine, half, row);
      vector_ops().store(args.y.dtype, row, width, args.y.row(t, h));
    }
  });
}

constexpr Kernel<RopeArgs> kRope[] = {{"tokens", always_supported<RopeArgs>, rope_workspace, run_rope}};

}  // namespace

KernelList<RopeArgs> rope_kernels() { return kRope; }

}  // namespace thalweg::cpu
