#pragma once

#include <string>
#include <string_view>

#include "core/exported.h"
#include "ops/backends.h"
#include "ops/check.h"
#include "ops/plan_call.h"

namespace thalweg {

// Explains what make_plan() answers for valid arguments.
template <class Args>
Explanation explain_valid(const Args& args, const Stream& stream) {
  const Backend& chosen = backend(stream.device.type);
  Explanation result{std::string(Args::kName), std::string(device_type_name(chosen.type)), {}, -1};
  const std::string selected = chosen.unavailable.empty() ? selected_kernel(Args::kName) : "";
  const Kernel<Args>* preferred = make_plan(chosen.kernels_of<Args>(), args, stream, selected).kernel;
  for (const Kernel<Args>& kernel : chosen.kernels_of<Args>()) {
    std::string reason = refusal(kernel, args, stream);
    const bool supported = reason.empty();
    const bool runs = &kernel == preferred;
    if (runs) result.chosen = static_cast<int>(result.kernels.size());
    if (supported && !runs && preferred != nullptr && selected.empty()) {
      reason = "costs at least as much as " + std::string(preferred->name);
    }
    if (supported && reason.empty() && kernel.remark != nullptr) reason = kernel.remark(args);
    result.kernels.push_back({std::string(kernel.name), supported, std::move(reason), kernel.arithmetic});
  }
  return result;
}

// The plan of a valid call; throws if no kernel runs it.
template <class Args>
Plan<Args> plan_of(const Args& args, const Stream& stream) {
  const Backend& chosen = backend(stream.device.type);
  if (chosen.unavailable.empty()) {
    const Plan<Args> plan = make_plan(chosen.kernels_of<Args>(), args, stream, selected_kernel(Args::kName));
    if (plan) return plan;
  }
  fail_without_kernel(explain_valid(args, stream), chosen.unavailable);
}

// The definitions behind operation.h. Each operation's file declares validate(const Args&, Check&), then instantiates
// them and the named function with THALWEG_OPERATION.
template <class Args>
Plan<Args> plan_call(const Args& args, Workspace workspace, const Stream& stream) {
  Check check(Args::kName, stream, Check::Data::kPresent);
  validate(args, check);
  check.finish();
  const Plan<Args> plan = plan_of(args, stream);
  check.workspace(workspace, plan.workspace);
  return plan;
}

template <class Args>
void run(const Args& args, Workspace workspace, const Stream& stream) {
  plan_call(args, workspace, stream).kernel->run(args, workspace, stream);
}

template <class Args>
std::size_t workspace_size(const Args& args, const Stream& stream) {
  Check check(Args::kName, stream, Check::Data::kShapesOnly);
  validate(args, check);
  return plan_of(args, stream).workspace;
}

template <class Args>
Explanation explain(const Args& args, const Stream& stream) {
  Check check(Args::kName, stream, Check::Data::kShapesOnly);
  validate(args, check);
  return explain_valid(args, stream);
}

}  // namespace thalweg

#define THALWEG_OPERATION(name, Args)                                                                      \
  template Plan<Args> plan_call(const Args&, Workspace, const Stream&);                                    \
  template THALWEG_EXPORTED void run(const Args&, Workspace, const Stream&);                               \
  template THALWEG_EXPORTED std::size_t workspace_size(const Args&, const Stream&);                        \
  template THALWEG_EXPORTED Explanation explain(const Args&, const Stream&);                               \
  void name(const Args& args, Workspace workspace, const Stream& stream) { run(args, workspace, stream); } \
  static_assert(Args::kName == #name)
