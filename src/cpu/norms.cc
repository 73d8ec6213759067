// rms_norm and gated_rms_norm: rows of a few thousand elements, several to a task.

#include <algorithm>

#include "core/threads.h"
#include "cpu/nn.h"
#include "cpu/nn_vector.h"
#include "cpu/scratch.h"
#include "cpu/tuning.h"
#include "cpu/vector.h"

namespace thalweg::cpu {
namespace {

// Elements of a task: enough to outweigh its start and its own f32 copy of the weight.
constexpr std::int64_t kTaskElements = 16384;

// Calls body(row, weight, scratch) for each of `rows` rows; scratch has `extra` floats. element_ns is an element's
// time.
template <class Body>
void for_each_row(const ConstTensor& weight, bool plus_one, std::int64_t rows, std::int64_t extra, double element_ns,
                  const Workspace& workspace, const Stream& stream, Body body) {
  const std::int64_t width = weight.dim(0);
  const std::int64_t per_task = std::max<std::int64_t>(1, kTaskElements / width);
  const double task_ns = static_cast<double>(std::min(rows, per_task) * width) * element_ns;
  parallel_for(stream, (rows + per_task - 1) / per_task, task_ns, [&](std::int64_t task, int worker) {
    Arena scratch = worker_arena(workspace, arena_floats(width, extra), worker);
    float* factors = scratch.take<float>(width);
    float* rest = scratch.take<float>(extra);
    vector_ops().load(weight.dtype, weight.data, width, factors);
    for (std::int64_t i = 0; plus_one && i < width; ++i) factors[i] += 1.0F;
    for (std::int64_t row = task * per_task; row < std::min(rows, (task + 1) * per_task); ++row) {
      body(row, factors, rest);
    }
  });
}

// ---- rms_norm

std::size_t rms_norm_workspace(const RmsNormArgs& args, const Stream& stream) {
  const std::int64_t width = args.weight.dim(0);
  return worker_bytes(arena_floats(width, args.delta.defined() ? 2 * width : width), stream);
}

void run_rms_norm(const RmsNormArgs& args, Workspace workspace, const Stream& stream) {
  const std::int64_t width = args.weight.dim(0);
  const VectorOps& vec = vector_ops();
  const bool heads = args.x.rank == 3;
  const bool adds = args.delta.defined();
  const std::int64_t per_token = heads ? args.x.dim(1) : 1;
  for_each_row(args.weight, args.weight_plus_one, args.x.dim(0) * per_token, adds ? 2 * width : width,
               tuning::kElementNs, workspace, stream, [&](std::int64_t row, const float* weight, float* x) {
                 const auto row_of = [&](const auto& tensor) {
                   return heads ? tensor.row(row / per_token, row % per_token) : tensor.row(row);
                 };
                 vec.load(args.x.dtype, row_of(args.x), width, x);
                 if (adds) {
                   vec.load(args.delta.dtype, row_of(args.delta), width, x + width);
                   vec.axpy(1.0F, x + width, width, x);
                 }
                 if (args.sum.defined()) vec.store(args.sum.dtype, x, width, row_of(args.sum));
                 nn_vector_ops().scale_multiply(inverse_rms(x, width, args.eps), x, weight, width, x);
                 vec.store(args.y.dtype, x, width, row_of(args.y));
               });
}

constexpr Kernel<RmsNormArgs> kRmsNorm[] = {{"rows", always_supported<RmsNormArgs>, rms_norm_workspace, run_rms_norm}};

// ---- gated_rms_norm

std::size_t gated_workspace(const GatedRmsNormArgs& args, const Stream& stream) {
  const std::int64_t width = args.weight.dim(0);
  return worker_bytes(arena_floats(width, 2 * width), stream);
}

void run_gated(const GatedRmsNormArgs& args, Workspace workspace, const Stream& stream) {
  const std::int64_t width = args.weight.dim(0);
  const std::int64_t heads = args.x.dim(1);
  for_each_row(args.weight, false, args.x.dim(0) * heads, 2 * width, tuning::kExponentialNs, workspace, stream,
               [&](std::int64_t row, const float* weight, float* x) {
                 float* z = x + width;
                 const std::int64_t t = row / heads;
                 const std::int64_t h = row % heads;
                 vector_ops().load(args.x.dtype, args.x.row(t, h), width, x);
                 vector_ops().load(args.z.dtype, args.z.row(t, h), width, z);
                 nn_vector_ops().scale_multiply(inverse_rms(x, width, args.eps), x, weight, width, x);
                 vector_ops().silu_multiply(z, x, width, x);
                 vector_ops().store(args.y.dtype, x, width, args.y.row(t, h));
               });
}

constexpr Kernel<GatedRmsNormArgs> kGated[] = {
    {"rows", always_supported<GatedRmsNormArgs>, gated_workspace, run_gated}};

}  // namespace

KernelList<RmsNormArgs> rms_norm_kernels() { return kRmsNorm; }
KernelList<GatedRmsNormArgs> gated_rms_norm_kernels() { return kGated; }

}  // namespace thalweg::cpu
