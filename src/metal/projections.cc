// Launches of projections: those of linear, in one encoder and none after another.

#include "core/projections.h"
#include "metal/expert_launches.h"
#include "metal/kernels.h"

namespace thalweg::metal {
namespace {

std::string remark(const ProjectionsArgs& args) { return products_remark(linear_kernels(), args); }

void run(const ProjectionsArgs& args, Workspace, const Stream& stream) {
  const auto encoder = make_encoder(args.kName, stream);
  for (const LinearArgs& product : ProductList(args)) {
    if (product.y.size() == 0) continue;
    const Plan<LinearArgs> plan = plan_product(linear_kernels(), product, stream);
    LinearParameters p{};
    encoder->launch(
        linear_launch(plan && plan.kernel->name == "tiles" ? "linear_tiles" : "linear_rows", product, {}, p));
  }
}

constexpr Kernel<ProjectionsArgs> kProjections[] = {{.name = "together",
                                                     .supports = always_supported<ProjectionsArgs>,
                                                     .workspace = no_workspace<ProjectionsArgs>,
                                                     .run = run,
                                                     .remark = remark}};

}  // namespace

KernelList<ProjectionsArgs> projections_kernels() { return kProjections; }

}  // namespace thalweg::metal
