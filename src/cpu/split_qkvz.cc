#include <cstring>

#include "core/threads.h"
#include "cpu/nn.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

void run_split(const SplitQkvzArgs& args, Workspace, const Stream& stream) {
  const auto bytes = [&](const Tensor& part) { return static_cast<std::size_t>(bytes_of(part.dtype, part.dim(2))); };
  const double task_ns = static_cast<double>(args.x.dim(1) * args.x.dim(2)) * tuning::kElementNs;
  parallel_for(stream, args.x.dim(0), task_ns, [&](std::int64_t t, int) {
    for (std::int64_t h = 0; h < args.x.dim(1); ++h) {
      const auto* from = static_cast<const char*>(args.x.row(t, h));
      for (const Tensor* part : {&args.q, &args.k, &args.v, &args.z}) {
        if (bytes(*part) > 0) std::memcpy(part->row(t, h), from, bytes(*part));
        from += bytes(*part);
      }
    }
  });
}

constexpr Kernel<SplitQkvzArgs> kSplit[] = {
    {"rows", always_supported<SplitQkvzArgs>, no_workspace<SplitQkvzArgs>, run_split}};

}  // namespace

KernelList<SplitQkvzArgs> split_qkvz_kernels() { return kSplit; }

}  // namespace thalweg::cpu
