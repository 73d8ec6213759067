// projections: several products of the same rows, by linear's kernels, together where these can be launched side by
// side.

#include <algorithm>
#include <string>
#include <string_view>

#include "core/projections.h"
#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/expert_tiles.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

std::string remark(const ProjectionsArgs& args) { return products_remark(linear_kernels(), args); }

// ---- together: a product's blocks start while those of the one ahead still run (PdlOrder)

std::string together_supports(const ProjectionsArgs& args, const Stream& stream) {
  for (const LinearArgs& product : ProductList(args)) {
    const Plan<LinearArgs> plan = plan_product(linear_kernels(), product, stream);
    if (!plan || (plan.kernel->name != "matvec" && plan.kernel->name != "bytes" && plan.kernel->name != "split")) {
      return "takes products that linear's matvec, bytes and split run";
    }
  }
  return {};
}

bool runs_bytes(const LinearArgs& product, const Stream& stream) {
  return product.y.size() > 0 && plan_product(linear_kernels(), product, stream).kernel->name == "bytes";
}

std::size_t together_workspace(const ProjectionsArgs& args, const Stream& stream) {
  const ProductList products(args);
  const auto bytes = [&](const LinearArgs& product) { return runs_bytes(product, stream); };
  return std::any_of(products.begin(), products.end(), bytes) ? bytes_workspace(args.x.dim(1)) : 0;
}

void run_together(const ProjectionsArgs& args, Workspace workspace, const Stream& stream) {
  if (args.x.dim(0) == 0) return;
  const CurrentDevice current(stream, args.kName);
  const ProductList products(args);
  // A product without results has no launch.
  const auto launched = [](const LinearArgs& product) { return product.y.size() > 0; };
  if (together_workspace(args, stream) > 0) write_row_records(args.x, workspace, stream, args.kName);
  bool beside = false;
  for (const LinearArgs& product : products) {
    if (!launched(product)) continue;
    ExpertMatmul p = expert_matmul(product);
    p.order = {beside, std::any_of(&product + 1, products.end(), launched)};
    beside = true;
    const std::string_view kernel = plan_product(linear_kernels(), product, stream).kernel->name;
    if (kernel == "matvec") {
      run_matvec(p, product.weight, stream, args.kName);
    } else if (kernel == "bytes") {
      run_bytes(p, product.weight, workspace, stream, args.kName);
    } else {
      run_split(p, product.x, product.weight, stream, args.kName);
    }
  }
}

// ---- each and exact: one after the other. Rows that `wgmma` has staged serve the next products too.

ProjectionsArgs with_exact_products(ProjectionsArgs args) {
  args.precision = MatmulPrecision::kExact;
  return args;
}

template <bool kExact>
std::string each_supports(const ProjectionsArgs& args, const Stream& stream) {
  for (const LinearArgs& product : ProductList(kExact ? with_exact_products(args) : args)) {
    if (plan_product(linear_kernels(), product, stream)) continue;
    std::string reason;
    for (const Kernel<LinearArgs>& kernel : linear_kernels()) reason = refusal(kernel, product, stream);
    return reason;
  }
  return {};
}

template <bool kExact>
std::size_t each_workspace(const ProjectionsArgs& args, const Stream& stream) {
  return each_product_workspace(linear_kernels(), kExact ? with_exact_products(args) : args, stream);
}
void run_each(const ProjectionsArgs& args, Workspace workspace, const Stream& stream) {
  const ProductList products(args);
  const LinearArgs* staged = nullptr;  // whose rows the workspace has
  for (const LinearArgs& product : products) {
    const Plan<LinearArgs> plan = plan_product(linear_kernels(), product, stream);
    if (!plan || product.y.size() == 0) continue;
    if (plan.kernel->name == "wgmma") {
      run_linear_tiles(product, workspace, stream, staged != nullptr && stage_alike(*staged, product));
      staged = &product;
    } else {
      plan.kernel->run(product, workspace, stream);
      if (plan.workspace > 0) staged = nullptr;
    }
  }
}
void run_exact(const ProjectionsArgs& args, Workspace workspace, const Stream& stream) {
  run_each_product(linear_kernels(), with_exact_products(args), workspace, stream);
}

constexpr Kernel<ProjectionsArgs> kProjections[] = {
    {.name = "together",
     .supports = together_supports,
     .workspace = together_workspace,
     .run = run_together,
     .remark = remark,
     .arithmetic = Arithmetic::k16Bit},
    {.name = "each",
     .supports = each_supports<false>,
     .workspace = each_workspace<false>,
     .run = run_each,
     .remark = remark,
     .arithmetic = Arithmetic::k16Bit},
    {.name = "exact", .supports = each_supports<true>, .workspace = each_workspace<true>, .run = run_exact}};

}  // namespace

KernelList<ProjectionsArgs> projections_kernels() { return kProjections; }

}  // namespace thalweg::cu
