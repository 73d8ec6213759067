#include "ops/gated_delta_checks.h"

#include <algorithm>
#include <array>

namespace thalweg {

void check_chunk_size(const Check& check, int chunk_size) {
  if (!(chunk_size == 16 || chunk_size == 32 || chunk_size == 64)) {
    check.fail("chunk_size", "16, 32 or 64", std::to_string(chunk_size));
  }
}

void check_head_map(const Check& check, HeadMap head_map, const Dim& num_k_heads, const Dim& num_v_heads) {
  if (!(head_map == HeadMap::kGrouped || head_map == HeadMap::kTiled)) {
    check.fail("head_map", "HeadMap::kGrouped or HeadMap::kTiled", "none of them");
  }
  const bool multiple = num_k_heads.value > 0 && num_v_heads.value % num_k_heads.value == 0;
  if (!multiple) {
    check.fail("k", "a number of key heads that divides HV = " + std::to_string(num_v_heads.value),
               "HK = " + std::to_string(num_k_heads.value));
  }
}

void check_rounding(const Check& check, Rounding rounding, DType dtype) {
  if (!(rounding == Rounding::kF32 || rounding == Rounding::kSeed)) {
    check.fail("rounding", "Rounding::kF32 or Rounding::kSeed", "none of them");
  }
  if (!(rounding == Rounding::kF32 || dtype == DType::kBF16)) {
    check.fail("rounding", "Rounding::kF32 unless k is BF16", "Rounding::kSeed with " + std::string(dtype_name(dtype)));
  }
}

void check_head_sizes(const Check& check, const Dim& k, const Dim& v) {
  constexpr std::array<std::int64_t, 7> kSizes = {16, 32, 64, 96, 128, 192, 256};
  for (const Dim* size : {&k, &v}) {
    if (!(std::find(kSizes.begin(), kSizes.end(), size->value) != kSizes.end())) {
      check.fail(size == &k ? "k" : "v", "a head size of 16, 32, 64, 96, 128, 192 or 256", std::to_string(size->value));
    }
  }
}

void check_states(Check& check, std::string_view input_name, const ConstTensor& initial_state,
                  std::string_view output_name, const Tensor& final_state, const ConstTensor& state_indices,
                  StateLayout layout, std::initializer_list<DType> dtypes, Dim& sequences, Dim& hv, Dim& v, Dim& k) {
  if (!(layout == StateLayout::kVK || layout == StateLayout::kKV)) {
    check.fail("state_layout", "StateLayout::kVK or StateLayout::kKV", "none of them");
  }
  Dim slots{state_indices.defined() ? "slots" : "N"};
  if (!state_indices.defined()) slots.value = sequences.value;
  Dim& rows = layout == StateLayout::kVK ? v : k;
  Dim& columns = layout == StateLayout::kVK ? k : v;
  if (initial_state.defined()) check.input(input_name, initial_state, dtypes, slots, hv, rows, columns);
  if (final_state.defined()) {
    if (initial_state.defined()) {
      check.output(output_name, final_state, {initial_state.dtype}, slots, hv, rows, columns);
    } else {
      check.output(output_name, final_state, dtypes, slots, hv, rows, columns);
    }
    check.may_alias(output_name, input_name);
  }
  if (state_indices.defined()) {
    if (!slots.bound()) {
      check.fail("state_indices", "a state pool to go with them", "neither initial nor final state");
    }
    check.state_indices(state_indices, sequences, slots.value);
  }
}

void check_gates(Check& check, const GateInputs& gates, Dim& b, Dim& t, Dim& hv) {
  check.input("gates.a", gates.a, kFloatTypes, b, t, hv);
  check.input("gates.b", gates.b, {gates.a.dtype}, b, t, hv);
  check.input("gates.a_log", gates.a_log, kFloatTypes, hv);
  check.input("gates.dt_bias", gates.dt_bias, kFloatTypes, hv);
}

void check_qk_norm(Check& check, QkNorm norm, float eps, const ConstTensor& q_weight, const ConstTensor& k_weight,
                   Dim& hk, Dim& k) {
  if (!(norm == QkNorm::kNone || norm == QkNorm::kL2 || norm == QkNorm::kRms)) {
    check.fail("qk_norm", "QkNorm::kNone, kL2 or kRms", "none of them");
  }
  if (!(eps >= 0.0F)) check.fail("qk_norm_eps", "0 or more", std::to_string(eps));
  if (norm == QkNorm::kRms) {
    check.input("q_norm_weight", q_weight, kFloatTypes, hk, k);
    check.input("k_norm_weight", k_weight, {q_weight.dtype}, hk, k);
  } else {
    if (q_weight.defined()) check.fail("q_norm_weight", "nothing without QkNorm::kRms", to_string(q_weight));
    if (k_weight.defined()) check.fail("k_norm_weight", "nothing without QkNorm::kRms", to_string(k_weight));
  }
}

RuleDims check_rule(Check& check, const GatedDeltaRuleArgs& args) {
  RuleDims d;
  check.input("q", args.q, kFloatTypes, d.b, d.t, d.hk, d.k);
  check.input("k", args.k, {args.q.dtype}, d.b, d.t, d.hk, d.k);
  check.input("v", args.v, {args.q.dtype}, d.b, d.t, d.hv, d.v);
  check_head_sizes(check, d.k, d.v);
  check_head_map(check, args.head_map, d.hk, d.hv);
  const GateInputs& gates = args.gates;
  if (gates.a.defined() || gates.b.defined() || gates.a_log.defined() || gates.dt_bias.defined()) {
    if (args.g.defined()) check.fail("g", "nothing beside gates", to_string(args.g));
    if (args.beta.defined()) check.fail("beta", "nothing beside gates", to_string(args.beta));
    check_gates(check, gates, d.b, d.t, d.hv);
  } else {
    check.input("g", args.g, {DType::kF32}, d.b, d.t, d.hv);
    check.input("beta", args.beta, {DType::kF32}, d.b, d.t, d.hv);
  }
  check_qk_norm(check, args.qk_norm, args.qk_norm_eps, args.q_norm_weight, args.k_norm_weight, d.hk, d.k);
  check.cu_seqlens(args.cu_seqlens, d.b, d.t, d.n);
  check_states(check, "initial_state", args.initial_state, "final_state", args.final_state, args.state_indices,
               args.state_layout, {DType::kF32, DType::kBF16}, d.n, d.hv, d.v, d.k);
  check.output("o", args.o, {DType::kF32, args.q.dtype}, d.b, d.t, d.hv, d.v);
  check.fault(args.fault);
  return d;
}

void check_states_along(Check& check, std::string_view name, const Tensor& states, const GatedDeltaRuleArgs& args,
                        RuleDims& d, Dim& places) {
  const bool vk = args.state_layout == StateLayout::kVK;
  DType state = DType::kF32;
  if (args.initial_state.defined()) state = args.initial_state.dtype;
  if (args.final_state.defined()) state = args.final_state.dtype;
  check.output(name, states, {DType::kF32, state}, d.b, places, d.hv, vk ? d.v : d.k, vk ? d.k : d.v);
}

}  // namespace thalweg
