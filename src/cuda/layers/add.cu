#include "cuda/common/pdl.h"
#include "cuda/common/tensor_view.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 256;

// A thread has four neighbors of a row.
__global__ void __launch_bounds__(kThreads)
    add(const Elements a, const Elements b, const Elements y, const std::int64_t rows, const int columns) {
  pdl_trigger_and_wait();
  const int row_threads = (columns + 3) / 4;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = i / row_threads;
  if (row >= rows) return;
  const int first = static_cast<int>(i % row_threads) * 4;
  const int count = min(4, columns - first);
  std::uint32_t left[4];
  std::uint32_t right[4];
  for (int j = 0; j < count; ++j) {
    left[j] = a.read(a.offset(row) + first + j);
    right[j] = b.read(b.offset(row) + first + j);
  }
  for (int j = 0; j < count; ++j) y.store(y.offset(row) + first + j, a.convert(left[j]) + b.convert(right[j]));
}

void run(const AddArgs& args, Workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  const std::int64_t threads = args.y.dim(0) * ((args.y.dim(1) + 3) / 4);
  pdl_launch(add, dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)), kThreads, 0,
             properties(stream.device.index), native(stream), args.kName, elements(args.a), elements(args.b),
             elements(args.y), args.y.dim(0), static_cast<int>(args.y.dim(1)));
}

}  // namespace

KernelList<AddArgs> add_kernels() {
  static constexpr Kernel<AddArgs> kKernels[] = {{"fours", always_supported<AddArgs>, no_workspace<AddArgs>, run}};
  return kKernels;
}

}  // namespace thalweg::cu
