// expert_rows: the row lists alone.

#include "cuda/experts/expert_lists.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

std::string too_many_experts(std::int64_t experts) {
  if (experts <= kMostListedExperts) return {};
  return "takes at most " + std::to_string(kMostListedExperts) + " experts";
}

std::string supports(const ExpertRowsArgs& args, const Stream&) {
  return too_many_experts(args.expert_offsets.dim(0) - 1);
}

void run(const ExpertRowsArgs& args, Workspace, const Stream& stream) {
  const CurrentDevice current(stream, args.kName);
  ExpertLists lists;
  lists.offsets = static_cast<std::int32_t*>(args.expert_offsets.data);
  lists.rows = static_cast<std::int32_t*>(args.rows.data);
  launch_lists(expert_ids(args.expert_ids, args.expert_offsets.dim(0) - 1, args.fault), lists, stream, args.kName);
}

constexpr Kernel<ExpertRowsArgs> kKernels[] = {{"counting", supports, no_workspace<ExpertRowsArgs>, run}};

}  // namespace

KernelList<ExpertRowsArgs> expert_rows_kernels() { return kKernels; }

}  // namespace thalweg::cu
