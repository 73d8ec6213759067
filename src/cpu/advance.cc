#include <algorithm>
#include <cstdint>

#include "cpu/sampling.h"

namespace thalweg::cpu {
namespace {

void run_advance(const AdvanceArgs& args, Workspace, const Stream&) {
  const auto values = [](const auto& tensor) { return static_cast<std::int32_t*>(tensor.data); };
  const auto* tokens = static_cast<const std::int32_t*>(args.tokens.data);
  const auto* ends = static_cast<const std::int32_t*>(args.end_tokens.data);
  const std::int64_t num_ends = args.end_tokens.size();
  for (std::int64_t n = 0; n < args.tokens.dim(0); ++n) {
    std::int32_t& slot = values(args.slots)[n];
    if (slot < 0) continue;
    const std::int32_t token = tokens[n];
    if (token == -1 || std::find(ends, ends + num_ends, token) != ends + num_ends) {
      slot = -1;
      continue;
    }
    std::int32_t& length = values(args.lengths)[n];
    if (args.history.defined() && slot < args.history.dim(0) && length < args.history.dim(1)) {
      static_cast<std::int32_t*>(args.history.row(slot))[length] = token;
    }
    values(args.ids)[n] = token;
    ++values(args.positions)[n];
    ++length;
  }
}

constexpr Kernel<AdvanceArgs> kAdvance[] = {
    {"sequences", always_supported<AdvanceArgs>, no_workspace<AdvanceArgs>, run_advance}};

}  // namespace

KernelList<AdvanceArgs> advance_kernels() { return kAdvance; }

}  // namespace thalweg::cpu
