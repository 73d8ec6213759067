#include <algorithm>

#include "core/threads.h"
#include "cpu/nn.h"
#include "cpu/scratch.h"
#include "cpu/tuning.h"
#include "cpu/vector.h"

namespace thalweg::cpu {
namespace {

// Columns of one task: both inputs in f32 stay in the first-level cache.
constexpr std::int64_t kColumns = 2048;

std::size_t swiglu_workspace(const SwigluArgs&, const Stream& stream) {
  return worker_bytes(arena_floats(kColumns, kColumns), stream);
}

void run_swiglu(const SwigluArgs& args, Workspace workspace, const Stream& stream) {
  const std::int64_t width = args.gate.dim(1);
  const std::int64_t blocks = (width + kColumns - 1) / kColumns;
  const double task_ns = static_cast<double>(std::min(kColumns, width)) * tuning::kExponentialNs;
  parallel_for(stream, args.gate.dim(0) * blocks, task_ns, [&](std::int64_t task, int worker) {
    Arena scratch = worker_arena(workspace, arena_floats(kColumns, kColumns), worker);
    float* gate = scratch.take<float>(kColumns);
    float* up = scratch.take<float>(kColumns);
    const std::int64_t t = task / blocks;
    const std::int64_t first = task % blocks * kColumns;
    const std::int64_t count = std::min(kColumns, width - first);
    vector_ops().load(args.gate.dtype, element(args.gate.dtype, args.gate.row(t), first), count, gate);
    vector_ops().load(args.up.dtype, element(args.up.dtype, args.up.row(t), first), count, up);
    vector_ops().silu_multiply(gate, up, count, up);
    vector_ops().store(args.y.dtype, up, count, element(args.y.dtype, args.y.row(t), first));
  });
}

constexpr Kernel<SwigluArgs> kSwiglu[] = {{"rows", always_supported<SwigluArgs>, swiglu_workspace, run_swiglu}};

}  // namespace

KernelList<SwigluArgs> swiglu_kernels() { return kSwiglu; }

}  // namespace thalweg::cpu
