#include "cuda/common/pdl.h"
#include "cuda/common/tensor_view.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 256;

// A thread has four neighbors of a row.
__global__ void __launch_bounds__(kThreads)
    swiglu(const Elements gate, const Elements up, const Elements y, const std::int64_t rows, const int columns) {
  pdl_trigger_and_wait();
  const int row_threads = (columns + 3) / 4;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = i / row_threads;
  if (row >= rows) return;
  const int first = static_cast<int>(i % row_threads) * 4;
  const int count = min(4, columns - first);
  std::uint32_t gates[4];
  std::uint32_t ups[4];
  for (int j = 0; j < count; ++j) {
    gates[j] = gate.read(gate.offset(row) + first + j);
    ups[j] = up.read(up.offset(row) + first + j);
  }
  for (int j = 0; j < count; ++j) {
    const float x = gate.convert(gates[j]);
    y.store(y.offset(row) + first + j, x / (1.0F + expf(-x)) * up.convert(ups[j]));
  }
}

void run(const SwigluArgs& args, Workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  const std::int64_t threads = args.y.dim(0) * ((args.y.dim(1) + 3) / 4);
  pdl_launch(swiglu, dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)), kThreads, 0,
             properties(stream.device.index), native(stream), args.kName, elements(args.gate), elements(args.up),
             elements(args.y), args.y.dim(0), static_cast<int>(args.y.dim(1)));
}

}  // namespace

KernelList<SwigluArgs> swiglu_kernels() {
  static constexpr Kernel<SwigluArgs> kKernels[] = {
      {"fours", always_supported<SwigluArgs>, no_workspace<SwigluArgs>, run}};
  return kKernels;
}

}  // namespace thalweg::cu
