#include "bench_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cases/experts.h"
#include "cases/gated_delta.h"
#include "reference/gated_delta_rule.h"

namespace thalweg::app {
namespace {

using cases::Bound;
using cases::Expected;
using reference::Array;
using reference::Precision;

Bound of_sample(Bound bound) { return {kSampleAllowance * bound.l2, kSampleAllowance * bound.max}; }

Array rounded_to(DType dtype, Array values) {
  reference::round_all(values, dtype, Precision::kRounded);
  return values;
}

std::vector<Expected> with_allowance(std::vector<Expected> outputs) {
  for (Expected& output : outputs) {
    output.bound_16bit = of_sample(output.bound_16bit);
  }
  return outputs;
}

Expected expect_of_rule(std::string name, const ConstTensor& actual, const Array& exact, Bound f32) {
  Expected output = cases::expect(std::move(name), actual, exact, rounded_to(actual.dtype, exact), f32);
  output.bound_16bit = of_sample(cases::matrix_unit_bound(DType::kBF16));
  return output;
}

}  // namespace

std::size_t span_bytes(const ConstTensor& view) {
  std::int64_t elements = view.dim(view.rank - 1);
  for (int i = 0; i + 1 < view.rank; ++i) {
    elements += (view.dim(i) - 1) * view.strides[static_cast<std::size_t>(i)];
  }
  return static_cast<std::size_t>(bytes_of(view.dtype, elements));
}

void* HostCopies::add(const ConstTensor& view) {
  copies_.push_back({view.data, std::vector<std::byte>(span_bytes(view))});
  Copy& copy = copies_.back();
  copy_to_host(stream_, copy.host.data(), copy.device, copy.host.size());
  return copy.host.data();
}

void HostCopies::refresh() {
  for (Copy& copy : copies_) copy_to_host(stream_, copy.host.data(), copy.device, copy.host.size());
}

void fill_with_nan(const Stream& stream, const Tensor& view) {
  if (!view.defined() || view.size() == 0) return;
  const std::vector<std::byte> nan(span_bytes(view), std::byte{0xFF});
  copy_to_device(stream, view.data, nan.data(), nan.size());
}

Arithmetic arithmetic_of(const Explanation& explanation) {
  if (explanation.chosen < 0) return Arithmetic::kF32;
  return explanation.kernels[static_cast<std::size_t>(explanation.chosen)].arithmetic;
}

std::string find_error(const std::vector<Expected>& outputs, Arithmetic arithmetic) {
  for (const Expected& output : outputs) {
    const cases::Comparison comparison = cases::compare(output, arithmetic);
    if (!comparison.ok) {
      return fmt::format("{}: error {:.3g}, bound {:.3g}", comparison.output, comparison.error, comparison.bound);
    }
  }
  return {};
}

std::vector<Expected> expect_recurrence(const RecurrentGatedDeltaRuleArgs& args) {
  const reference::GatedDeltaResult exact = reference::gated_delta_rule(args, args.snapshots, Precision::kExact);
  const Bound bound = cases::f32_bound(static_cast<double>(args.k.dim(3) + args.k.dim(1)), 1.0);
  std::vector<Expected> outputs = {expect_of_rule("o", args.o, exact.o, bound)};
  if (args.final_state.defined()) {
    outputs.push_back(expect_of_rule("final_state", args.final_state, exact.final_state, bound));
  }
  if (args.snapshots.defined()) {
    outputs.push_back(expect_of_rule("snapshots", args.snapshots, exact.snapshots, bound));
  }
  return outputs;
}

std::vector<Expected> expect_step(const GatedDeltaPrepStepArgs& args) {
  const reference::GatedDeltaResult exact = reference::gated_delta_prep_step(args, Precision::kExact);
  const reference::GatedDeltaResult rounded = reference::gated_delta_prep_step(args, Precision::kRounded);
  const Bound bound = cases::f32_bound(static_cast<double>(args.state_in.dim(2) + args.state_in.dim(3)), 64.0);
  const Bound bf16 = of_sample(cases::matrix_unit_bound(DType::kBF16));
  std::vector<Expected> outputs = {
      cases::expect("y", args.y, exact.o, rounded.o, bound, bf16),
      cases::expect("state_out", args.state_out, exact.final_state, rounded.final_state, bound, bf16)};
  if (args.snapshots.defined()) {
    outputs.push_back(cases::expect("snapshots", args.snapshots, exact.snapshots, rounded.snapshots, bound, bf16));
  }
  return outputs;
}

std::vector<Expected> expect_experts(const MulMatIdArgs& args) {
  return with_allowance(cases::expect_products(args, false));
}

std::vector<Expected> expect_moe(const MoeFfnArgs& args) { return with_allowance(cases::expect_ffn(args)); }

std::vector<Expected> expect_linear(const LinearArgs& args) { return with_allowance(cases::expect_linear(args)); }

std::vector<Expected> expect_prefill(const ChunkGatedDeltaRuleArgs& args, const std::vector<std::int64_t>& tokens) {
  const reference::RuleResult exact = reference::recurrence(reference::read_rule(args));
  const std::int64_t width = args.v.dim(3);
  Array o({static_cast<std::int64_t>(tokens.size()), width});
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (std::int64_t j = 0; j < width; ++j) o(i, j) = exact.o(0, tokens[i], 0, j);
  }
  // Gates of a chunk of 64 tokens sum up to less than this.
  constexpr double kLargestGate = 16.0;
  const Bound bound = cases::f32_bound(static_cast<double>(args.k.dim(3) + args.k.dim(1)), kLargestGate);
  return {expect_of_rule("o", args.o, o, bound),
          expect_of_rule("final_state", args.final_state, exact.final_state, bound)};
}

}  // namespace thalweg::app
