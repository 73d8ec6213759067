#pragma once

// projections as the products that it is made of.

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "core/kernel.h"
#include "core/selected_kernels.h"
#include "thalweg/nn.h"

namespace thalweg {

// The products that are given, in order.
class ProductList {
 public:
  explicit ProductList(const ProjectionsArgs& args) {
    add(args, args.weight_0, args.y_0);
    add(args, args.weight_1, args.y_1);
    add(args, args.weight_2, args.y_2);
    add(args, args.weight_3, args.y_3);
  }

  std::size_t size() const { return count_; }
  const LinearArgs& operator[](std::size_t i) const { return products_[i]; }
  const LinearArgs* begin() const { return products_.data(); }
  const LinearArgs* end() const { return products_.data() + count_; }

 private:
  void add(const ProjectionsArgs& args, const ConstTensor& weight, const Tensor& y) {
    if (!weight.defined()) return;
    LinearArgs& product = products_[count_++];
    product.x = args.x;
    product.weight = weight;
    product.y = y;
    product.precision = args.precision;
  }

  std::array<LinearArgs, 4> products_;
  std::size_t count_ = 0;
};

// How linear would run a product by itself, with the bits that the product must have.
inline Plan<LinearArgs> plan_product(KernelList<LinearArgs> kernels, const LinearArgs& product, const Stream& stream) {
  return make_step_plan(kernels, product, stream, selected_kernels().of(LinearArgs::kName));
}

// The products one after the other, each by the kernel that linear would take.
inline std::size_t each_product_workspace(KernelList<LinearArgs> kernels, const ProjectionsArgs& args,
                                          const Stream& stream) {
  std::size_t most = 0;
  for (const LinearArgs& product : ProductList(args)) {
    most = std::max(most, plan_product(kernels, product, stream).workspace);
  }
  return most;
}
inline void run_each_product(KernelList<LinearArgs> kernels, const ProjectionsArgs& args, Workspace workspace,
                             const Stream& stream) {
  for (const LinearArgs& product : ProductList(args)) {
    const Plan<LinearArgs> plan = plan_product(kernels, product, stream);
    if (plan) plan.kernel->run(product, workspace, stream);
  }
}

// For explain(): the kernel of each product.
inline std::string products_remark(KernelList<LinearArgs> kernels, const ProjectionsArgs& args) {
  std::string text = "by linear's";
  const ProductList products(args);
  for (const LinearArgs& product : products) {
    const Plan<LinearArgs> plan = plan_product(kernels, product, Stream{args.x.device});
    text += &product == products.begin() ? " " : ", ";
    text += plan ? std::string(plan.kernel->name) : "none";
  }
  return text;
}

}  // namespace thalweg
