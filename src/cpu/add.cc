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

std::size_t add_workspace(const AddArgs&, const Stream& stream) {
  return worker_bytes(arena_floats(kColumns, kColumns), stream);
}

void run_add(const AddArgs& args, Workspace workspace, const Stream& stream) {
  const VectorOps& vec = vector_ops();
  const std::int64_t width = args.a.dim(1);
  const std::int64_t blocks = (width + kColumns - 1) / kColumns;
  const double task_ns = static_cast<double>(std::min(kColumns, width)) * tuning::kElementNs;
  parallel_for(stream, args.a.dim(0) * blocks, task_ns, [&](std::int64_t task, int worker) {
    Arena scratch = worker_arena(workspace, arena_floats(kColumns, kColumns), worker);
    float* a = scratch.take<float>(kColumns);
    float* b = scratch.take<float>(kColumns);
    const std::int64_t t = task / blocks;
    const std::int64_t first = task % blocks * kColumns;
    const std::int64_t count = std::min(kColumns, width - first);
    vec.load(args.a.dtype, element(args.a.dtype, args.a.row(t), first), count, a);
    vec.load(args.b.dtype, element(args.b.dtype, args.b.row(t), first), count, b);
    vec.axpy(1.0F, b, count, a);
    vec.store(args.y.dtype, a, count, element(args.y.dtype, args.y.row(t), first));
  });
}

constexpr Kernel<AddArgs> kAdd[] = {{"rows", always_supported<AddArgs>, add_workspace, run_add}};

}  // namespace

KernelList<AddArgs> add_kernels() { return kAdd; }

}  // namespace thalweg::cpu
