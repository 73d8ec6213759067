#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "thalweg/device.h"
#include "thalweg/gated_delta_rule.h"
#include "thalweg/moe.h"
#include "thalweg/nn.h"
#include "thalweg/quant.h"
#include "thalweg/sampling.h"

namespace thalweg {

// One way to run an operation on a backend. Arguments have been validated against the contract before any of the three
// functions sees them.
template <class Args>
struct Kernel {
  std::string_view name;
  // Empty if the kernel can run these arguments, else the reason why not.
  std::string (*supports)(const Args& args, const Stream& stream);
  std::size_t (*workspace)(const Args& args, const Stream& stream);
  void (*run)(const Args& args, Workspace workspace, const Stream& stream);
  // What explain() says about a kernel that can run these arguments; null: nothing.
  std::string (*remark)(const Args& args) = nullptr;
  Arithmetic arithmetic = Arithmetic::kF32;
  // Microseconds that these arguments are estimated to take on the stream's device, whether or not the kernel supports
  // them; constants and their source stand in the backend's tuning.h. Either all kernels of a list have one, or none
  // has.
  double (*cost)(const Args& args, const Stream& stream) = nullptr;
};

template <class Args>
using KernelList = std::span<const Kernel<Args>>;

// Whether the kernel's arithmetic is coarser than the caller's precision allows.
template <class Args>
bool is_too_coarse(const Kernel<Args>& kernel, const Args& args) {
  if constexpr (requires { args.precision; }) {
    return args.precision == MatmulPrecision::kExact && kernel.arithmetic != Arithmetic::kF32;
  } else {
    return false;
  }
}

// Why the kernel cannot run valid arguments; empty if it can.
template <class Args>
std::string refusal(const Kernel<Args>& kernel, const Args& args, const Stream& stream) {
  if (is_too_coarse(kernel, args)) return "rounds activations; kExact forbids it";
  return kernel.supports(args, stream);
}

// A call's plan: which kernel runs, and the workspace that it needs. A pure function of shapes, strides, dtypes,
// alignment and options, never of addresses or values, so that a plan made without memory is the plan that runs.
template <class Args>
struct Plan {
  const Kernel<Args>* kernel = nullptr;  // null: none supports the arguments
  std::size_t workspace = 0;             // bytes

  explicit operator bool() const { return kernel != nullptr; }
};

// Of a list. A plan remembers in the bits of one word which of them refused.
constexpr std::size_t kMostKernels = 64;

// Of the kernels that support valid arguments the one with the lowest cost, the first of equals; or the selected one.
// In the order of their costs, so that usually one kernel alone looks at the arguments: supports() takes longer than
// cost(), most of all where it refuses.
template <class Args>
Plan<Args> make_plan(KernelList<Args> kernels, const Args& args, const Stream& stream, std::string_view selected = {}) {
  std::uint64_t refused = 0;
  while (true) {
    const Kernel<Args>* best = nullptr;
    double best_cost = 0.0;
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      const Kernel<Args>& kernel = kernels[i];
      if ((refused >> i & 1U) != 0 || is_too_coarse(kernel, args)) continue;
      if (!selected.empty() && selected != kernel.name) continue;
      const double cost = kernel.cost != nullptr ? kernel.cost(args, stream) : 0.0;
      if (best != nullptr && !(cost < best_cost)) continue;
      best = &kernel;
      best_cost = cost;
      if (kernel.cost == nullptr) break;
    }
    if (best == nullptr) return {};
    if (best->supports(args, stream).empty()) return {best, best->workspace(args, stream)};
    refused |= std::uint64_t{1} << (best - kernels.data());
  }
}

// The plan of a step within a kernel that is made of other operations: the selected kernel where it supports the step,
// else as if none were selected.
template <class Args>
Plan<Args> make_step_plan(KernelList<Args> kernels, const Args& args, const Stream& stream, std::string_view selected) {
  if (!selected.empty()) {
    if (const Plan<Args> plan = make_plan(kernels, args, stream, selected)) return plan;
  }
  return make_plan(kernels, args, stream);
}

template <class... Args>
struct TypeList {};

// Every public operation, in the order of the documentation.
using Operations =
    TypeList<ChunkLocalCumsumArgs, L2normArgs, ChunkScaledDotKktArgs, SolveTrilArgs, RecomputeWUArgs, ChunkStateArgs,
             ChunkOutputArgs, ChunkGatedDeltaRuleArgs, RecurrentGatedDeltaRuleArgs, GatedDeltaPrepStepArgs,
             CausalConv1dArgs, CausalConv1dUpdateArgs, RmsNormArgs, GatedRmsNormArgs, RopeArgs, AttentionArgs,
             StoreKvArgs, SplitQkvzArgs, LinearArgs, ProjectionsArgs, EmbeddingArgs, AddArgs, SwigluArgs, RouteTopKArgs,
             ExpertRowsArgs, MulMmIdArgs, MulMvIdArgs, MulMatIdArgs, MoeFfnArgs, SampleTokensArgs, LogprobsArgs,
             AdvanceArgs, DequantizeArgs, QuantizeArgs>;

namespace detail {
template <class List>
struct KernelTable;
template <class... Args>
struct KernelTable<TypeList<Args...>> {
  using type = std::tuple<KernelList<Args>...>;
};
}  // namespace detail

struct DeviceFunctions;

// A backend: for every operation its kernels in order of preference.
struct Backend {
  DeviceType type = DeviceType::kCpu;
  std::string unavailable;  // why the backend cannot run here; empty if it can
  detail::KernelTable<Operations>::type kernels;
  std::vector<std::string> (*instruction_sets)() = nullptr;
  bool (*select_instruction_set)(std::string_view name) = nullptr;
  const DeviceFunctions* device = nullptr;  // device_functions.h
  std::string note;                         // how it runs, where its name does not say it

  template <class Args>
  KernelList<Args> kernels_of() const {
    return std::get<KernelList<Args>>(kernels);
  }
};

// fn.template operator()<Args>() for each operation.
template <class Function, class... Args>
void for_each_operation(TypeList<Args...>, Function&& function) {
  (function.template operator()<Args>(), ...);
}
template <class Function>
void for_each_operation(Function&& function) {
  for_each_operation(Operations{}, function);
}

// For kernels without conditions or scratch memory.
template <class Args>
std::string always_supported(const Args&, const Stream&) {
  return {};
}
template <class Args>
std::size_t no_workspace(const Args&, const Stream&) {
  return 0;
}

}  // namespace thalweg
