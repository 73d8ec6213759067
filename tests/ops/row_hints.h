#pragma once

// RowHint's promise on any backend: with kFew and kMany the results of rows, or sequences, have the bits that they have
// without the others of their call.

#include <gtest/gtest.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cases/case.h"
#include "cases/nn.h"
#include "ops/run_in_memory.h"

namespace thalweg::row_hints {

using cases::Memory;

// Rows, or sequences, of a call.
struct Some {
  std::int64_t first;
  std::int64_t count;
};

template <class Args>
concept Products = requires(Args args) {
  args.x;
  args.precision;
};

template <class T>
void take_rows(T& tensor, int dim, Some some) {
  if (tensor.defined()) tensor = narrow(tensor, dim, some.first, some.count);
}

// ---- a call's rows or sequences, and the same call with some of them

template <Products Args>
std::int64_t count_of(const Args& args) {
  return args.x.dim(0);
}
inline std::int64_t count_of(const AttentionArgs& args) { return args.lengths.dim(0); }
template <class Args>
requires std::derived_from<Args, GatedDeltaRuleArgs> std::int64_t count_of(const Args& args) {
  return args.cu_seqlens.defined() ? args.cu_seqlens.dim(0) - 1 : args.q.dim(0);
}
inline std::int64_t count_of(const GatedDeltaPrepStepArgs& args) {
  return args.cu_seqlens.defined() ? args.cu_seqlens.dim(0) - 1 : args.x.dim(0);
}

template <Products Args>
Args with_some(Args args, Some some, Memory&) {
  take_rows(args.x, 0, some);
  if constexpr (std::same_as<Args, ProjectionsArgs>) {
    for (Tensor* y : {&args.y_0, &args.y_1, &args.y_2, &args.y_3}) take_rows(*y, 0, some);
  } else {
    take_rows(args.y, 0, some);
  }
  if constexpr (std::derived_from<Args, ExpertMatmulArgs>) take_rows(args.expert_ids, 0, some);
  return args;
}

// The tokens of some sequences, whose lengths begin anew.
inline Some take_sequences(ConstTensor& cu_seqlens, Some some, Memory& memory) {
  const auto* const begins = static_cast<const std::int32_t*>(cu_seqlens.data) + some.first;
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n < some.count; ++n) lengths.push_back(begins[n + 1] - begins[n]);
  const Some tokens{begins[0], begins[some.count] - begins[0]};
  cu_seqlens = cases::cu_seqlens_of(memory, lengths);
  return tokens;
}

inline AttentionArgs with_some(AttentionArgs args, Some some, Memory& memory) {
  const Some tokens = take_sequences(args.cu_seqlens, some, memory);
  take_rows(args.q, 0, tokens);
  take_rows(args.gate, 0, tokens);
  take_rows(args.o, 0, tokens);
  take_rows(args.lengths, 0, some);
  if (!args.slots.defined() && !args.pages.defined()) {
    std::vector<std::int64_t> slots;
    for (std::int64_t n = 0; n < some.count; ++n) slots.push_back(some.first + n);
    args.slots = cases::integers(memory, slots);
  } else {
    take_rows(args.slots, 0, some);
    take_rows(args.pages, 0, some);
  }
  return args;
}

// Of tensors whose first two dimensions are those of the activations.
template <class Args>
void take_tokens(Args& args, const std::vector<ConstTensor*>& inputs, Tensor& output, Some some, Memory& memory) {
  const bool packed = args.cu_seqlens.defined();
  const Some tokens = packed ? take_sequences(args.cu_seqlens, some, memory) : some;
  for (ConstTensor* input : inputs) take_rows(*input, packed ? 1 : 0, tokens);
  take_rows(output, packed ? 1 : 0, tokens);
  take_rows(args.state_indices, 0, some);
}

template <class Args>
requires std::derived_from<Args, GatedDeltaRuleArgs> Args with_some(Args args, Some some, Memory& memory) {
  const bool pool = args.state_indices.defined();
  take_tokens(args, {&args.q, &args.k, &args.v, &args.g, &args.beta, &args.gates.a, &args.gates.b}, args.o, some,
              memory);
  if (pool) return args;
  take_rows(args.initial_state, 0, some);
  take_rows(args.final_state, 0, some);
  return args;
}

inline GatedDeltaPrepStepArgs with_some(GatedDeltaPrepStepArgs args, Some some, Memory& memory) {
  const bool pool = args.state_indices.defined();
  take_tokens(args, {&args.x, &args.gates.a, &args.gates.b, &args.z}, args.y, some, memory);
  take_rows(args.replay_counts, 0, some);
  if (pool) return args;
  take_rows(args.state_in, 0, some);
  for (Tensor* tensor : {&args.state_out, &args.conv_state, &args.replay_x, &args.replay_a, &args.replay_b}) {
    take_rows(*tensor, 0, some);
  }
  return args;
}

// Outputs that are not compared are left out.
template <class Args>
Args without_states_between(Args args) {
  if constexpr (std::same_as<Args, ChunkGatedDeltaRuleArgs>) args.checkpoints = {};
  if constexpr (requires { args.snapshots; }) args.snapshots = {};
  return args;
}

// ---- results

template <class Args>
void add_states(std::vector<Tensor>& results, const Args& args, const Tensor& states) {
  if (!states.defined()) return;
  if (!args.state_indices.defined()) return results.push_back(states);
  for (std::int64_t n = 0; n < args.state_indices.dim(0); ++n) {
    const std::int32_t slot = static_cast<const std::int32_t*>(args.state_indices.data)[n];
    if (slot >= 0) results.push_back(narrow(states, 0, slot, 1));
  }
}

template <class Args>
std::vector<Tensor> results_of(const Args& args) {
  std::vector<Tensor> results;
  if constexpr (std::same_as<Args, ProjectionsArgs>) {
    for (const Tensor& y : {args.y_0, args.y_1, args.y_2, args.y_3}) {
      if (y.defined()) results.push_back(y);
    }
  } else if constexpr (requires { args.y; }) {
    results.push_back(args.y);
  } else {
    results.push_back(args.o);
  }
  if constexpr (requires { args.final_state; }) add_states(results, args, args.final_state);
  if constexpr (requires { args.state_out; }) {
    add_states(results, args, args.state_out);
    add_states(results, args, args.conv_state);
  }
  return results;
}

template <class Args>
std::vector<std::uint8_t> bytes_of_results(const Args& args) {
  std::vector<std::uint8_t> bytes;
  for (const Tensor& result : results_of(args)) {
    cases::for_each_row(result, [&](void* row, std::int64_t, std::int64_t count) {
      const auto* const begin = static_cast<const std::uint8_t*>(row);
      bytes.insert(bytes.end(), begin, begin + bytes_of(result.dtype, count));
    });
  }
  return bytes;
}

// Of one row the address may be aligned where those of several are not, and another kernel take it.
template <class Args>
bool rows_are_aligned(Args args) {
  bool aligned = true;
  cases::visit_tensors(args, [&](const auto& tensor) {
    if (tensor.defined() && tensor.rank > 1) aligned &= bytes_of(tensor.dtype, tensor.stride(0)) % 16 == 0;
  });
  return aligned;
}

template <class Args>
void expect_rows_alone(const Args& given, Memory& memory, Stream stream, const std::string& name) {
  const Args args = without_states_between(given);
  const std::int64_t count = count_of(args);
  std::vector<Some> selections;
  if (count > 1 && rows_are_aligned(args)) selections = {{0, 1}, {count / 2, 1}};
  if (count > 2) selections.insert(selections.end(), {{0, 2}, {count / 3, std::max<std::int64_t>(2, count / 2)}});
  std::vector<Args> calls;
  for (const Some& some : selections) calls.push_back(with_some(args, some, memory));
  for (const RowHint hint : {RowHint::kFew, RowHint::kMany}) {
    stream.rows = hint;
    memory.reset();
    const std::string kernel = run_in_memory(args, memory, stream);
    std::vector<std::vector<std::uint8_t>> expected;
    for (const Args& call : calls) expected.push_back(bytes_of_results(call));
    for (std::size_t i = 0; i < calls.size(); ++i) {
      memory.reset();
      run_in_memory(calls[i], memory, stream);
      EXPECT_TRUE(bytes_of_results(calls[i]) == expected[i])
          << Args::kName << " " << name << ", " << kernel << (hint == RowHint::kFew ? ", kFew" : ", kMany") << ": "
          << selections[i].count << " of " << count << " from " << selections[i].first;
    }
  }
}

// The cases of an operation.
template <class Args>
void expect_rows_alone_in_cases(const Stream& stream) {
  constexpr double kMostFlops = 2e7;
  int tried = 0;
  for (const cases::Case& test : cases::all_cases()) {
    if (test.operation != Args::kName || !test.verify || test.name.find("strided") != std::string::npos) continue;
    const std::unique_ptr<cases::Problem> problem = test.make(7);
    if (problem->cost.flops > kMostFlops) continue;
    const Args& args = static_cast<const cases::OperationProblem<Args>&>(*problem).args;
    if (count_of(args) < 2 || problem->explanation(stream).chosen < 0) continue;
    ++tried;
    expect_rows_alone(args, problem->memory, stream, test.name);
  }
  EXPECT_GT(tried, 2) << Args::kName;
}

// The operations that honor the hint.
using Operations =
    testing::Types<LinearArgs, ProjectionsArgs, MulMmIdArgs, MulMvIdArgs, MulMatIdArgs, MoeFfnArgs, AttentionArgs,
                   ChunkGatedDeltaRuleArgs, RecurrentGatedDeltaRuleArgs, GatedDeltaPrepStepArgs>;
struct OperationName {
  template <class Args>
  static std::string GetName(int) {  // NOLINT(readability-identifier-naming)
    return std::string(Args::kName);
  }
};

}  // namespace thalweg::row_hints
