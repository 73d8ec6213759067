#include "cuda/common/pdl.h"
#include "cuda/common/tensor_view.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 256;

// One of the four results, and the columns of a key head in x that it takes.
struct Part {
  Elements to;
  int first;
  int width;
};
struct Split {
  Elements x;
  Part parts[4];
  int heads;
  int width;  // of a key head in x
};

// Copies unit by unit: a 16-bit or 32-bit element, or four of them. A block has a key head of a token.
template <class Unit>
__global__ void __launch_bounds__(kThreads) split(const __grid_constant__ Split p, const int unit_elements) {
  pdl_trigger_and_wait();
  const auto t = static_cast<std::int64_t>(blockIdx.x) / p.heads;
  const int head = static_cast<int>(static_cast<std::int64_t>(blockIdx.x) % p.heads);
  const auto* from = static_cast<const Unit*>(p.x.data) + p.x.offset(t, head) / unit_elements;
#pragma unroll
  for (const Part& part : p.parts) {
    auto* to = static_cast<Unit*>(part.to.data) + part.to.offset(t, head) / unit_elements;
    for (int i = static_cast<int>(threadIdx.x); i < part.width / unit_elements; i += kThreads) {
      to[i] = from[part.first / unit_elements + i];
    }
  }
}

void run(const SplitQkvzArgs& args, Workspace, const Stream& stream) {
  if (args.x.size() == 0) return;
  Split p{};
  p.x = elements(args.x);
  p.heads = static_cast<int>(args.x.dim(1));
  p.width = static_cast<int>(args.x.dim(2));
  bool fours = p.x.fours;
  int first = 0;
  int i = 0;
  for (const Tensor* result : {&args.q, &args.k, &args.v, &args.z}) {
    Part& part = p.parts[i++];
    part = {elements(*result), first, static_cast<int>(result->dim(2))};
    first += part.width;
    fours &= part.to.fours && part.width % 4 == 0;
  }
  const CurrentDevice current(stream, args.kName);
  const bool wide = args.x.dtype == DType::kF32;
  void (*kernel)(Split, int) =
      fours ? (wide ? split<uint4> : split<uint2>) : (wide ? split<std::uint32_t> : split<std::uint16_t>);
  pdl_launch(kernel, dim3(static_cast<unsigned>(args.x.dim(0) * args.x.dim(1))), kThreads, 0,
             properties(stream.device.index), native(stream), args.kName, p, fours ? 4 : 1);
}

}  // namespace

KernelList<SplitQkvzArgs> split_qkvz_kernels() {
  static constexpr Kernel<SplitQkvzArgs> kKernels[] = {
      {"heads", always_supported<SplitQkvzArgs>, no_workspace<SplitQkvzArgs>, run}};
  return kKernels;
}

}  // namespace thalweg::cu
