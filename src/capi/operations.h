#pragma once

// THALWEG_C_OPERATIONS(X) is X(name, Args) for each operation: thalweg_<name>_args and the C++ struct that it mirrors.

#define THALWEG_C_OPERATIONS(X)                              \
  X(chunk_local_cumsum, ChunkLocalCumsumArgs)                \
  X(l2norm, L2normArgs)                                      \
  X(chunk_scaled_dot_kkt, ChunkScaledDotKktArgs)             \
  X(solve_tril, SolveTrilArgs)                               \
  X(recompute_w_u, RecomputeWUArgs)                          \
  X(chunk_state, ChunkStateArgs)                             \
  X(chunk_output, ChunkOutputArgs)                           \
  X(chunk_gated_delta_rule, ChunkGatedDeltaRuleArgs)         \
  X(recurrent_gated_delta_rule, RecurrentGatedDeltaRuleArgs) \
  X(gated_delta_prep_step, GatedDeltaPrepStepArgs)           \
  X(causal_conv1d, CausalConv1dArgs)                         \
  X(causal_conv1d_update, CausalConv1dUpdateArgs)            \
  X(rms_norm, RmsNormArgs)                                   \
  X(gated_rms_norm, GatedRmsNormArgs)                        \
  X(rope, RopeArgs)                                          \
  X(attention, AttentionArgs)                                \
  X(store_kv, StoreKvArgs)                                   \
  X(split_qkvz, SplitQkvzArgs)                               \
  X(linear, LinearArgs)                                      \
  X(projections, ProjectionsArgs)                            \
  X(embedding, EmbeddingArgs)                                \
  X(add, AddArgs)                                            \
  X(swiglu, SwigluArgs)                                      \
  X(route_top_k, RouteTopKArgs)                              \
  X(expert_rows, ExpertRowsArgs)                             \
  X(mul_mm_id, MulMmIdArgs)                                  \
  X(mul_mv_id, MulMvIdArgs)                                  \
  X(mul_mat_id, MulMatIdArgs)                                \
  X(moe_ffn, MoeFfnArgs)                                     \
  X(sample_tokens, SampleTokensArgs)                         \
  X(logprobs, LogprobsArgs)                                  \
  X(advance, AdvanceArgs)                                    \
  X(dequantize, DequantizeArgs)                              \
  X(quantize, QuantizeArgs)
