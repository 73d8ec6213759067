#pragma once

// visit_tensors(args, fn): fn(tensor) for each tensor of an operation's arguments, absent ones included.

#include "core/kernel.h"

namespace thalweg::cases {

template <class Fn>
void visit_tensors(ChunkLocalCumsumArgs& a, Fn fn) {
  fn(a.g), fn(a.cu_seqlens), fn(a.g_cumsum);
}
template <class Fn>
void visit_tensors(L2normArgs& a, Fn fn) {
  fn(a.x), fn(a.y);
}
template <class Fn>
void visit_tensors(ChunkScaledDotKktArgs& a, Fn fn) {
  fn(a.k), fn(a.beta), fn(a.g_cumsum), fn(a.cu_seqlens), fn(a.a);
}
template <class Fn>
void visit_tensors(SolveTrilArgs& a, Fn fn) {
  fn(a.a), fn(a.cu_seqlens), fn(a.a_inv);
}
template <class Fn>
void visit_tensors(RecomputeWUArgs& a, Fn fn) {
  fn(a.k), fn(a.v), fn(a.beta), fn(a.g_cumsum), fn(a.a_inv), fn(a.cu_seqlens), fn(a.w), fn(a.u);
}
template <class Fn>
void visit_tensors(ChunkStateArgs& a, Fn fn) {
  fn(a.k), fn(a.w), fn(a.u), fn(a.g_cumsum), fn(a.initial_state), fn(a.state_indices), fn(a.cu_seqlens), fn(a.h);
  fn(a.v_new), fn(a.final_state);
}
template <class Fn>
void visit_tensors(ChunkOutputArgs& a, Fn fn) {
  fn(a.q), fn(a.k), fn(a.v_new), fn(a.h), fn(a.g_cumsum), fn(a.cu_seqlens), fn(a.o);
}
template <class Fn>
void visit_tensors(GateInputs& a, Fn fn) {
  fn(a.a), fn(a.b), fn(a.a_log), fn(a.dt_bias);
}
template <class Fn>
void visit_tensors(GatedDeltaRuleArgs& a, Fn fn) {
  fn(a.q), fn(a.k), fn(a.v), fn(a.g), fn(a.beta), fn(a.initial_state), fn(a.state_indices), fn(a.cu_seqlens), fn(a.o);
  fn(a.final_state), fn(a.q_norm_weight), fn(a.k_norm_weight), fn(a.fault);
  visit_tensors(a.gates, fn);
}
template <class Fn>
void visit_tensors(ChunkGatedDeltaRuleArgs& a, Fn fn) {
  visit_tensors(static_cast<GatedDeltaRuleArgs&>(a), fn);
}
template <class Fn>
void visit_tensors(RecurrentGatedDeltaRuleArgs& a, Fn fn) {
  visit_tensors(static_cast<GatedDeltaRuleArgs&>(a), fn);
  fn(a.snapshots);
}
template <class Fn>
void visit_tensors(GatedDeltaPrepStepArgs& a, Fn fn) {
  fn(a.x), fn(a.conv_weight), fn(a.conv_state), fn(a.q_norm_weight), fn(a.k_norm_weight), fn(a.state_in);
  fn(a.state_out), fn(a.state_indices), fn(a.snapshots), fn(a.z), fn(a.norm_weight), fn(a.y), fn(a.fault);
  visit_tensors(a.gates, fn);
}
template <class Fn>
void visit_tensors(CausalConv1dArgs& a, Fn fn) {
  fn(a.x), fn(a.weight), fn(a.bias), fn(a.initial_state), fn(a.final_state), fn(a.state_indices), fn(a.cu_seqlens);
  fn(a.y);
}
template <class Fn>
void visit_tensors(CausalConv1dUpdateArgs& a, Fn fn) {
  fn(a.x), fn(a.weight), fn(a.bias), fn(a.conv_state), fn(a.state_indices), fn(a.y);
}
template <class Fn>
void visit_tensors(RmsNormArgs& a, Fn fn) {
  fn(a.x), fn(a.weight), fn(a.y);
}
template <class Fn>
void visit_tensors(GatedRmsNormArgs& a, Fn fn) {
  fn(a.x), fn(a.z), fn(a.weight), fn(a.y);
}
template <class Fn>
void visit_tensors(RopeArgs& a, Fn fn) {
  fn(a.x), fn(a.positions), fn(a.y);
}
template <class Fn>
void visit_tensors(AttentionArgs& a, Fn fn) {
  fn(a.q), fn(a.k_cache), fn(a.v_cache), fn(a.cu_seqlens), fn(a.lengths), fn(a.slots), fn(a.gate), fn(a.o);
}
template <class Fn>
void visit_tensors(StoreKvArgs& a, Fn fn) {
  fn(a.k), fn(a.v), fn(a.cu_seqlens), fn(a.lengths), fn(a.slots), fn(a.k_cache), fn(a.v_cache);
}
template <class Fn>
void visit_tensors(SplitQkvzArgs& a, Fn fn) {
  fn(a.x), fn(a.q), fn(a.k), fn(a.v), fn(a.z);
}
template <class Fn>
void visit_tensors(LinearArgs& a, Fn fn) {
  fn(a.x), fn(a.weight), fn(a.bias), fn(a.y);
}
template <class Fn>
void visit_tensors(EmbeddingArgs& a, Fn fn) {
  fn(a.ids), fn(a.table), fn(a.y);
}
template <class Fn>
void visit_tensors(AddArgs& a, Fn fn) {
  fn(a.a), fn(a.b), fn(a.y);
}
template <class Fn>
void visit_tensors(SwigluArgs& a, Fn fn) {
  fn(a.gate), fn(a.up), fn(a.y);
}
template <class Fn>
void visit_tensors(RouteTopKArgs& a, Fn fn) {
  fn(a.router_logits), fn(a.expert_ids), fn(a.expert_weights);
}
template <class Fn>
void visit_tensors(ExpertRowsArgs& a, Fn fn) {
  fn(a.expert_ids), fn(a.expert_offsets), fn(a.rows), fn(a.fault);
}
template <class Fn>
void visit_tensors(ExpertMatmulArgs& a, Fn fn) {
  fn(a.weight), fn(a.x), fn(a.expert_ids), fn(a.y), fn(a.fault);
}
template <class Fn>
void visit_tensors(MoeFfnArgs& a, Fn fn) {
  fn(a.x), fn(a.router), fn(a.gate), fn(a.up), fn(a.down), fn(a.shared_gate), fn(a.shared_up), fn(a.shared_down);
  fn(a.shared_router), fn(a.y);
}
template <class Fn>
void visit_tensors(DequantizeArgs& a, Fn fn) {
  fn(a.blocks), fn(a.values);
}
template <class Fn>
void visit_tensors(QuantizeArgs& a, Fn fn) {
  fn(a.values), fn(a.blocks);
}

}  // namespace thalweg::cases
