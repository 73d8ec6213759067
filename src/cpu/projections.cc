// projections: the products of one x with several matrices, in one pass over the rows of all of them.

#include <algorithm>
#include <array>
#include <optional>

#include "core/projections.h"
#include "cpu/expert_matmul.h"
#include "cpu/moe.h"

namespace thalweg::cpu {
namespace {

std::string_view kernel_of(const LinearArgs& product, const Stream& stream) {
  const Plan<LinearArgs> plan = plan_product(linear_kernels(), product, stream);
  return plan ? plan.kernel->name : "";
}
bool is_q8(const LinearArgs& product, const Stream& stream) { return kernel_of(product, stream) == "q8"; }
// linear's q8 and exact are loops over segments of rows, which can be joined; matrix units are not.
bool is_joined(const LinearArgs& product, const Stream& stream) {
  const std::string_view kernel = kernel_of(product, stream);
  return kernel == "q8" || kernel == "exact";
}

// ---- q8 and exact: all products together

std::string q8_supports(const ProjectionsArgs& args, const Stream& stream) {
  const ProductList products(args);
  const auto all = [&](auto property) {
    return std::all_of(products.begin(), products.end(), [&](const LinearArgs& p) { return property(p, stream); });
  };
  if (!all(is_joined)) return "takes products that linear's q8 and exact run";
  return std::any_of(products.begin(), products.end(), [&](const LinearArgs& p) { return is_q8(p, stream); })
             ? ""
             : "needs kFast and weights in blocks";
}

// The rows of activations in the forms that the products read.
struct JoinedMemory {
  std::array<bool, 4> q8{};
  std::optional<Activations> rounded;
  std::optional<Activations> plain;
  float* scratch;
  std::size_t bytes;

  JoinedMemory(const ProductList& products, bool round, const Stream& stream, Arena arena) {
    for (std::size_t i = 0; i < products.size(); ++i) {
      q8[i] = round && is_q8(products[i], stream);
      std::optional<Activations>& form = q8[i] ? rounded : plain;
      if (!form) form.emplace(products[i].x, q8[i], arena);
    }
    scratch = arena.take<float>(product_floats() * thread_count(stream));
    bytes = arena.used();
  }
};

template <bool kQ8>
std::size_t joined_workspace(const ProjectionsArgs& args, const Stream& stream) {
  return JoinedMemory(ProductList(args), kQ8, stream, Arena()).bytes;
}

template <bool kQ8>
void run_joined(const ProjectionsArgs& args, Workspace workspace, const Stream& stream) {
  const ProductList products(args);
  const JoinedMemory memory(products, kQ8, stream, Arena(workspace));
  for (const auto* form : {&memory.rounded, &memory.plain}) {
    if (*form) (*form)->prepare(stream);
  }
  // Tasks are the segments of one product after those of another; the passes over a segment follow each other.
  const std::int64_t rows = args.x.dim(0);
  const std::int64_t passes = (rows + kRowsPerPass - 1) / kRowsPerPass;
  std::array<std::int64_t, 5> begins{};  // the first task of each product
  double total_ns = 0.0;
  for (std::size_t i = 0; i < products.size(); ++i) {
    const ConstTensor& weight = products[i].weight;
    const std::int64_t tasks = segments_of(weight.dim(0)) * passes;
    begins[i + 1] = begins[i] + tasks;
    total_ns += static_cast<double>(tasks) *
                segment_ns(weight.dtype, weight.dim(0), weight.dim(1), std::min(rows, kRowsPerPass), memory.q8[i]);
  }
  const std::int64_t tasks = begins[products.size()];
  for_each_segment(stream, tasks, total_ns / static_cast<double>(std::max<std::int64_t>(tasks, 1)),
                   [&](std::int64_t task, int worker, bool continues) {
                     std::size_t i = 0;
                     while (task >= begins[i + 1]) ++i;
                     const LinearArgs& product = products[i];
                     const Activations& x = memory.q8[i] ? *memory.rounded : *memory.plain;
                     const std::int64_t own = task - begins[i];
                     const std::int64_t first = own % passes * kRowsPerPass;
                     multiply_rows(
                         WeightMatrix::of(product.weight),
                         segment_range(product.weight.dim(0), own / passes, continues), memory.q8[i],
                         std::min(kRowsPerPass, rows - first), [&](std::int64_t r) { return x.row(first + r, 0); },
                         [&](std::int64_t r, std::int64_t n, std::int64_t count, float* sums) {
                           store_product(product, first + r, n, count, sums);
                         },
                         memory.scratch + worker * product_floats());
                   });
}

// ---- each: one after the other

std::size_t each_workspace(const ProjectionsArgs& args, const Stream& stream) {
  return each_product_workspace(linear_kernels(), args, stream);
}
void run_each(const ProjectionsArgs& args, Workspace workspace, const Stream& stream) {
  run_each_product(linear_kernels(), args, workspace, stream);
}
std::string each_remark(const ProjectionsArgs& args) { return products_remark(linear_kernels(), args); }

constexpr Kernel<ProjectionsArgs> kProjections[] = {{.name = "q8",
                                                     .supports = q8_supports,
                                                     .workspace = joined_workspace<true>,
                                                     .run = run_joined<true>,
                                                     .remark = [](const ProjectionsArgs&) { return q8_remark(); },
                                                     .arithmetic = Arithmetic::k8Bit},
                                                    {.name = "each",
                                                     .supports = always_supported<ProjectionsArgs>,
                                                     .workspace = each_workspace,
                                                     .run = run_each,
                                                     .remark = each_remark,
                                                     .arithmetic = Arithmetic::k8Bit},
                                                    {.name = "exact",
                                                     .supports = always_supported<ProjectionsArgs>,
                                                     .workspace = joined_workspace<false>,
                                                     .run = run_joined<false>}};

}  // namespace

KernelList<ProjectionsArgs> projections_kernels() { return kProjections; }

}  // namespace thalweg::cpu
