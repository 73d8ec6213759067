// moe_ffn's `steps` and `exact`: each matmul by the kernel of mul_mat_id or linear that costs the least, or that is
// selected. The experts' outputs are bf16 in `steps`, f32 in `exact`.

#include <algorithm>
#include <string>

#include "core/selected_kernels.h"
#include "cuda/experts/moe_ffn.h"
#include "cuda/kernels.h"

namespace thalweg::cu {
MulMatIdArgs expert_product(const MoeFfnArgs& args, const ConstTensor& weight, const ConstTensor& x,
                            const ConstTensor& ids, void* y, DType dtype) {
  MulMatIdArgs product;
  product.weight = weight;
  product.x = x;
  product.expert_ids = ids;
  product.y = Tensor(y, dtype, {num_tokens(args), args.top_k, weight.dim(1)}, args.x.device);
  product.precision = args.precision;
  return product;
}

namespace {

template <class Args>
Plan<Args> plan_step(KernelList<Args> kernels, const Args& args, const Stream& stream) {
  return make_step_plan(kernels, args, stream, selected_kernels().of(Args::kName));
}

// Empty if some kernel runs the step, else why the last one does not.
template <class Args>
std::string step_reason(KernelList<Args> kernels, const Args& args, const Stream& stream) {
  if (plan_step(kernels, args, stream)) return {};
  std::string reason = "has no kernel";
  for (const Kernel<Args>& kernel : kernels) {
    reason = refusal(kernel, args, stream);
  }
  return std::string(Args::kName) + " " + reason;
}

// The arguments of all steps, on tensors in the workspace. Product is the type of the experts' outputs.
template <class Product>
struct Steps {
  static constexpr DType kProductType = std::is_same_v<Product, float> ? DType::kF32 : DType::kBF16;

  MoeRouting routing;
  float* gates;              // [T,S,I]
  float* ups;                // [T,S,I]
  Product* products;         // [T,S,D]
  float* shared_gates;       // [T,J]
  float* shared_ups;         // [T,J]
  Product* shared_products;  // [T,D]

  Steps(const MoeFfnArgs& args, const Stream& stream, Arena& arena)
      : routing(args, stream, arena),
        gates(arena.take<float>(num_pairs(args) * inner_size(args))),
        ups(arena.take<float>(num_pairs(args) * inner_size(args))),
        products(arena.take<Product>(num_pairs(args) * hidden_size(args))),
        shared_gates(arena.take<float>(num_tokens(args) * shared_inner_size(args))),
        shared_ups(arena.take<float>(num_tokens(args) * shared_inner_size(args))),
        shared_products(arena.take<Product>(has_shared(args) ? num_tokens(args) * hidden_size(args) : 0)) {}

  // body(name, kernels, arguments) for each step, in order.
  template <class Body>
  void for_each(const MoeFfnArgs& args, Body&& body) const {
    const Device device = args.x.device;
    const std::int64_t t = num_tokens(args);
    const std::int64_t s = args.top_k;
    const auto experts_of = [&](std::string_view name, const ConstTensor& weight, const ConstTensor& x, void* y,
                                DType dtype) {
      body(name, mul_mat_id_kernels(), expert_product(args, weight, x, routing.id_tensor(args), y, dtype));
    };
    const auto linear_of = [&](std::string_view name, const ConstTensor& weight, const ConstTensor& x, void* y,
                               DType dtype) {
      LinearArgs step;
      step.weight = weight;
      step.x = x;
      step.y = Tensor(y, dtype, {t, weight.dim(0)}, device);
      step.precision = args.precision;
      body(name, linear_kernels(), step);
    };
    const auto activate = [&](std::string_view name, float* gate, float* up, std::int64_t rows, std::int64_t columns) {
      SwigluArgs step;
      step.gate = ConstTensor(gate, DType::kF32, {rows, columns}, device);
      step.up = ConstTensor(up, DType::kF32, {rows, columns}, device);
      step.y = Tensor(gate, DType::kF32, {rows, columns}, device);
      body(name, swiglu_kernels(), step);
    };
    experts_of("gate", args.gate, args.x, gates, DType::kF32);
    experts_of("up", args.up, args.x, ups, DType::kF32);
    activate("swiglu", gates, ups, t * s, inner_size(args));
    experts_of("down", args.down, ConstTensor(gates, DType::kF32, {t, s, inner_size(args)}, device), products,
               kProductType);
    if (!has_shared(args)) return;
    linear_of("shared gate", args.shared_gate, args.x, shared_gates, DType::kF32);
    linear_of("shared up", args.shared_up, args.x, shared_ups, DType::kF32);
    activate("shared swiglu", shared_gates, shared_ups, t, shared_inner_size(args));
    linear_of("shared down", args.shared_down,
              ConstTensor(shared_gates, DType::kF32, {t, shared_inner_size(args)}, device), shared_products,
              kProductType);
  }
};

template <class Product>
std::string supports(const MoeFfnArgs& args, const Stream& stream) {
  std::string reason = routing_reason(args);
  if (reason.empty()) {
    Arena arena;
    Steps<Product>(args, stream, arena).for_each(args, [&](std::string_view, const auto& kernels, const auto& step) {
      if (reason.empty()) reason = step_reason(kernels, step, stream);
    });
  }
  return reason;
}

// The steps share the scratch memory behind their tensors.
template <class Product>
std::size_t workspace(const MoeFfnArgs& args, const Stream& stream) {
  Arena arena;
  std::size_t scratch = 0;
  Steps<Product>(args, stream, arena).for_each(args, [&](std::string_view, const auto& kernels, const auto& step) {
    scratch = std::max(scratch, plan_step(kernels, step, stream).workspace);
  });
  arena.take<std::byte>(static_cast<std::int64_t>(scratch));
  return arena.used();
}

template <class Product>
void run(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DeviceProperties& device = properties(stream.device.index);
  Arena arena(workspace);
  const Steps<Product> steps(args, stream, arena);
  std::byte* const scratch = arena.take<std::byte>(0);
  steps.routing.run(args, device, native(stream));
  steps.for_each(args, [&](std::string_view, const auto& kernels, const auto& step) {
    const auto plan = plan_step(kernels, step, stream);
    plan.kernel->run(step, {scratch, plan.workspace}, stream);
  });
  run_combine(args, steps.products, steps.routing.weights, steps.routing.ids, steps.shared_products, device,
              native(stream));
}

template <class Product>
std::string remark(const MoeFfnArgs& args) {
  const Stream stream{args.x.device};
  std::string text = routing_remark(args);
  Arena arena;
  Steps<Product>(args, stream, arena).for_each(args, [&](std::string_view name, const auto& kernels, const auto& step) {
    text += "; " + std::string(name) + ": " + std::string(plan_step(kernels, step, stream).kernel->name);
  });
  return text;
}

MoeFfnArgs with_exact_products(MoeFfnArgs args) {
  args.precision = MatmulPrecision::kExact;
  return args;
}

}  // namespace

std::string moe_steps_supports(const MoeFfnArgs& args, const Stream& stream) { return supports<Bf16>(args, stream); }

std::size_t moe_steps_workspace(const MoeFfnArgs& args, const Stream& stream) { return workspace<Bf16>(args, stream); }

void run_moe_steps(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  run<Bf16>(args, workspace, stream);
}

std::string moe_steps_remark(const MoeFfnArgs& args) { return remark<Bf16>(args); }

std::string moe_exact_supports(const MoeFfnArgs& args, const Stream& stream) {
  return supports<float>(with_exact_products(args), stream);
}

std::size_t moe_exact_workspace(const MoeFfnArgs& args, const Stream& stream) {
  return workspace<float>(with_exact_products(args), stream);
}

void run_moe_exact(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  run<float>(with_exact_products(args), workspace, stream);
}

std::string moe_exact_remark(const MoeFfnArgs& args) { return remark<float>(with_exact_products(args)); }

}  // namespace thalweg::cu
