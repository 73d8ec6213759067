#pragma once

#include "core/kernel.h"

namespace thalweg::cu {

KernelList<ChunkLocalCumsumArgs> chunk_local_cumsum_kernels();
KernelList<L2normArgs> l2norm_kernels();
KernelList<ChunkScaledDotKktArgs> chunk_scaled_dot_kkt_kernels();
KernelList<SolveTrilArgs> solve_tril_kernels();
KernelList<RecomputeWUArgs> recompute_w_u_kernels();
KernelList<ChunkStateArgs> chunk_state_kernels();
KernelList<ChunkOutputArgs> chunk_output_kernels();
KernelList<ChunkGatedDeltaRuleArgs> chunk_gated_delta_rule_kernels();
KernelList<RecurrentGatedDeltaRuleArgs> recurrent_gated_delta_rule_kernels();
KernelList<GatedDeltaPrepStepArgs> gated_delta_prep_step_kernels();
KernelList<CausalConv1dArgs> causal_conv1d_kernels();
KernelList<CausalConv1dUpdateArgs> causal_conv1d_update_kernels();
KernelList<RmsNormArgs> rms_norm_kernels();
KernelList<GatedRmsNormArgs> gated_rms_norm_kernels();
KernelList<RopeArgs> rope_kernels();
KernelList<SplitQkvzArgs> split_qkvz_kernels();
KernelList<EmbeddingArgs> embedding_kernels();
KernelList<AddArgs> add_kernels();
KernelList<AttentionArgs> attention_kernels();
KernelList<StoreKvArgs> store_kv_kernels();
KernelList<ExpertRowsArgs> expert_rows_kernels();
KernelList<MulMmIdArgs> mul_mm_id_kernels();
KernelList<MulMvIdArgs> mul_mv_id_kernels();
KernelList<MulMatIdArgs> mul_mat_id_kernels();
KernelList<LinearArgs> linear_kernels();
KernelList<ProjectionsArgs> projections_kernels();
KernelList<RouteTopKArgs> route_top_k_kernels();
KernelList<SwigluArgs> swiglu_kernels();
KernelList<MoeFfnArgs> moe_ffn_kernels();
KernelList<SampleTokensArgs> sample_tokens_kernels();
KernelList<LogprobsArgs> logprobs_kernels();
KernelList<AdvanceArgs> advance_kernels();

}  // namespace thalweg::cu
