#pragma once

// The gated delta rule (Gated DeltaNet, arXiv 2412.06464): whole operations and the stages of its chunk form.
//
// Sizes:  B batch, T tokens, N sequences, HK key heads, HV value heads (a multiple of HK), K and V head sizes,
//         C chunk length, NC chunks.
// Layout: token-major, innermost last. Packed ragged batches have B = 1 and cu_seqlens i32 [N+1], starting at 0, not
//         decreasing, ending at T; sequences may be empty. Without cu_seqlens every batch row is a sequence, N = B.
//         The CPU backend reads cu_seqlens and state_indices on the host and refuses wrong values; on a GPU they are
//         read by the kernels, which skip a sequence whose bounds or slot are out of range (see DeviceFault).
// Gates:  g is the natural-log decay, g <= 0; beta the write strength. Both f32.
// Rule:   S' = exp(g_t) S;  d = beta_t (v_t - S' k_t);  S = S' + d k_t^T;  o_t = scale S q_t   (S is [V,K]).
//
// Outputs overlap no input and no other output unless the contract names the pair. T = 0 and N = 0 are valid. Inputs
// and outputs may be strided views, innermost dimension contiguous. Any thread may call these functions; two calls at
// once must not share a slot of a pool.

#include <cstdint>
#include <optional>
#include <string_view>

#include "thalweg/api.h"
#include "thalweg/operation.h"
#include "thalweg/tensor.h"

THALWEG_API_BEGIN
namespace thalweg {

// Which key head a value head reads. There is no default, because the wrong one silently gives wrong tokens.
enum class HeadMap : std::uint8_t {
  kUnset,
  kGrouped,  // value head h reads key head h / (HV/HK): Hugging Face, Qwen3-Next files
  kTiled,    // value head h reads key head h % HK: Qwen3.5 and 3.6 GGUF files
};

// Where a stage rounds between its steps.
enum class Rounding : std::uint8_t {
  kF32,   // f32 throughout, one rounding when a result is stored
  kSeed,  // bf16 where each stage says, as the kernels that this library began with; needs bf16 k
};

enum class StateLayout : std::uint8_t {
  kVK,  // [..,V,K], K innermost
  kKV,  // [..,K,V], V innermost
};

// Normalization of q and k inside an operation, per head.
enum class QkNorm : std::uint8_t {
  kNone,
  kL2,   // x * rsqrt(sum x^2 + eps)
  kRms,  // x * rsqrt(mean x^2 + eps) * weight
};

// ---------------------------------------------------------------------------------------------------------------------
// Stages of the chunk form. A chunk is `chunk_size` tokens of one sequence, counted from the sequence's start; the
// last one may be partial. chunk_size is 16, 32 or 64. K and V are as for the whole operations, except that
// chunk_scaled_dot_kkt takes any K. k, and every tensor with the dtype of k, is bf16, f16 or f32. g and g_cumsum are
// natural logarithms.

// Cumulative sum of g within each chunk, in f32, in token order.
struct ChunkLocalCumsumArgs {
  static constexpr std::string_view kName = "chunk_local_cumsum";
  ConstTensor g;           // [B,T,HV] f32
  ConstTensor cu_seqlens;  // [N+1] i32, optional
  Tensor g_cumsum;         // [B,T,HV] f32; may be g itself
  int chunk_size = 64;
};

// x * rsqrt(sum x^2 + eps) over the innermost dimension, sums in f32. A row of zeros needs an eps above 0.
struct L2normArgs {
  static constexpr std::string_view kName = "l2norm";
  ConstTensor x;  // [B,T,H,K], f32, f16 or bf16; K >= 1
  Tensor y;       // like x; may be x itself
  float eps = 1e-6F;
};

// a[t,h,j] = beta_i (k_i . k_j) exp(G_i - G_j) for i > j within the chunk, else 0; i is t's index in its chunk, j
// that of another token of the chunk. Columns from the length of a partial chunk on are 0. Exponents above 0 are never
// evaluated. Rounding::kSeed: beta_i k_i is rounded to bf16 before the dot product.
struct ChunkScaledDotKktArgs {
  static constexpr std::string_view kName = "chunk_scaled_dot_kkt";
  ConstTensor k;           // [B,T,HK,K]
  ConstTensor beta;        // [B,T,HV] f32
  ConstTensor g_cumsum;    // [B,T,HV] f32, summed within the chunk
  ConstTensor cu_seqlens;  // [N+1] i32, optional
  Tensor a;                // [B,T,HV,C] f32
  int chunk_size = 64;
  HeadMap head_map = HeadMap::kUnset;
  Rounding rounding = Rounding::kF32;
};

// a_inv = (I + a)^-1 per chunk, a strictly lower triangular (what lies on and above the diagonal is not read).
// f32 forward substitution. Every cell is written: unit diagonal, zeros above it and beyond a partial chunk.
struct SolveTrilArgs {
  static constexpr std::string_view kName = "solve_tril";
  ConstTensor a;           // [B,T,HV,C] f32
  ConstTensor cu_seqlens;  // [N+1] i32, optional
  Tensor a_inv;            // [B,T,HV,C] f32 or bf16; may be a itself
  int chunk_size = 64;
};

// w = A_inv (beta k exp(G)), u = A_inv (beta v).
// Rounding::kSeed: A_inv, beta k exp(G) and beta v are rounded to bf16 before the products.
struct RecomputeWUArgs {
  static constexpr std::string_view kName = "recompute_w_u";
  ConstTensor k;           // [B,T,HK,K]
  ConstTensor v;           // [B,T,HV,V], dtype of k
  ConstTensor beta;        // [B,T,HV] f32
  ConstTensor g_cumsum;    // [B,T,HV] f32
  ConstTensor a_inv;       // [B,T,HV,C] f32 or bf16
  ConstTensor cu_seqlens;  // [N+1] i32, optional
  Tensor w;                // [B,T,HV,K], dtype of k
  Tensor u;                // [B,T,HV,V], dtype of k
  int chunk_size = 64;
  HeadMap head_map = HeadMap::kUnset;
  Rounding rounding = Rounding::kF32;
};

// The recurrence from chunk to chunk. Per chunk, in this order: h = S; v' = u - w S^T in f32; v_new = v'; S =
// exp(G_last) S + (v' exp(G_last - G))^T k. G_last is that of the chunk's last valid token. The state stays f32
// throughout. Chunks of h are numbered through the sequences: sequence n's first chunk is the sum of ceil(T_m / C) over
// m < n within the batch row. Rounding::kSeed: v' exp(G_last - G) is rounded to bf16 before the outer product (after
// the gate, not before it).
struct ChunkStateArgs {
  static constexpr std::string_view kName = "chunk_state";
  ConstTensor k;              // [B,T,HK,K]
  ConstTensor w;              // [B,T,HV,K], dtype of k
  ConstTensor u;              // [B,T,HV,V], dtype of k
  ConstTensor g_cumsum;       // [B,T,HV] f32
  ConstTensor initial_state;  // [N,HV,V,K] or a pool [slots,HV,V,K], f32 or bf16, optional (zero)
  ConstTensor state_indices;  // [N] i32, optional: the sequence's slot in both pools; -1: zero state, write nothing
  ConstTensor cu_seqlens;     // [N+1] i32, optional
  Tensor h;                   // [B,NC,HV,V,K], dtype of k, optional: the state before each chunk
  Tensor v_new;               // [B,T,HV,V], dtype of k, optional
  Tensor final_state;         // like initial_state, optional; may be initial_state itself
  int chunk_size = 64;
  HeadMap head_map = HeadMap::kUnset;
  StateLayout state_layout = StateLayout::kVK;  // of initial_state and final_state; h is always [..,V,K]
  Rounding rounding = Rounding::kF32;
};

// o = scale ((q exp(G)) h^T + tril(q k^T exp(G_i - G_j)) v_new), diagonal included.
// Rounding::kSeed: tril(..) is rounded to bf16 before the product with v_new, and exp(G) multiplies (q h^T) after it.
struct ChunkOutputArgs {
  static constexpr std::string_view kName = "chunk_output";
  ConstTensor q;               // [B,T,HK,K]
  ConstTensor k;               // [B,T,HK,K], dtype of q
  ConstTensor v_new;           // [B,T,HV,V], dtype of q
  ConstTensor h;               // [B,NC,HV,V,K], dtype of q
  ConstTensor g_cumsum;        // [B,T,HV] f32
  ConstTensor cu_seqlens;      // [N+1] i32, optional
  Tensor o;                    // [B,T,HV,V], f32 or dtype of q
  std::optional<float> scale;  // nullopt: K^-1/2
  int chunk_size = 64;
  HeadMap head_map = HeadMap::kUnset;
  Rounding rounding = Rounding::kF32;
};

// ---------------------------------------------------------------------------------------------------------------------
// Whole operations. K and V are each one of 16, 32, 64, 96, 128, 192, 256, and may differ. Arithmetic in f32.

// Raw gates, turned into g and beta inside: g = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b), in f32, with
// softplus(x) = x for x > 20, else log1p(exp(x)).
struct GateInputs {
  ConstTensor a;        // [B,T,HV], f32, f16 or bf16
  ConstTensor b;        // [B,T,HV], dtype of a
  ConstTensor a_log;    // [HV], f32, f16 or bf16
  ConstTensor dt_bias;  // [HV], f32, f16 or bf16
};

// What chunk_gated_delta_rule and recurrent_gated_delta_rule share. Either g and beta are given, or all of gates.
struct GatedDeltaRuleArgs {
  ConstTensor q;     // [B,T,HK,K], f32, f16 or bf16
  ConstTensor k;     // [B,T,HK,K], dtype of q
  ConstTensor v;     // [B,T,HV,V], dtype of q
  ConstTensor g;     // [B,T,HV] f32
  ConstTensor beta;  // [B,T,HV] f32
  GateInputs gates;
  ConstTensor initial_state;  // [N,HV,V,K], or a pool [slots,HV,V,K] with state_indices; f32 or bf16; optional (zero)
  ConstTensor state_indices;  // [N] i32, optional: the sequence's slot in both pools; -1: zero state, write nothing.
                              // Slots of one call differ from each other.
  ConstTensor cu_seqlens;     // [N+1] i32, optional
  Tensor o;                   // [B,T,HV,V], f32 or dtype of q
  Tensor final_state;         // shape and dtype of initial_state, optional; may be initial_state itself
  HeadMap head_map = HeadMap::kUnset;
  StateLayout state_layout = StateLayout::kVK;
  std::optional<float> scale;  // nullopt: K^-1/2
  QkNorm qk_norm = QkNorm::kNone;
  float qk_norm_eps = 1e-6F;
  ConstTensor q_norm_weight;  // [HK,K] for QkNorm::kRms, f32, f16 or bf16
  ConstTensor k_norm_weight;  // [HK,K], dtype of q_norm_weight
  Tensor fault;               // [1] i32, optional: DeviceFault bits, written on GPUs only
};

// Prefill: the chunk form (chunks of 64 tokens inside). A sequence's result does not depend on other sequences.
struct ChunkGatedDeltaRuleArgs : GatedDeltaRuleArgs {
  static constexpr std::string_view kName = "chunk_gated_delta_rule";
  Tensor checkpoints;  // [B,NC,HV,V,K] (or [..,K,V] by state_layout), dtype of the state or f32, optional: the state
                       // before each segment of checkpoint_tokens tokens, numbered like the chunks of chunk_state.
                       // Written for sequences with state index -1 too.
  int checkpoint_tokens = 64;  // a multiple of 64
  // f32 q, k and v may be rounded to bf16 where bf16 products are faster: the errors are those of bf16 inputs.
  bool bf16_operands = false;
};

// The same function, token by token: decode, speculative decode with rollback, and the plainest statement of the rule.
struct RecurrentGatedDeltaRuleArgs : GatedDeltaRuleArgs {
  static constexpr std::string_view kName = "recurrent_gated_delta_rule";
  Tensor snapshots;  // [B,T,HV,V,K] (or [..,K,V] by state_layout), dtype of the state or f32, optional: the state after
                     // each token. Written for sequences with state index -1 too.
};

// Fused decode: optional causal convolution and SiLU, split, norm of q and k, gates, recurrence, optional gated RMS
// norm. T tokens for each of B sequences, or N packed ones. Intermediate values are f32 and are never rounded; stores
// round once. HV, K and V are the state's; HK = (channels of x - HV V) / (2 K).
//
// Verification of drafts without a state per token: with `drafts` only the first token of each sequence changes the
// states; the others are drafts and only produce outputs. Their rows of x and of the gates are kept in replay_x,
// replay_a and replay_b, and the next call replays the first replay_counts of them before its own tokens, advancing
// the states. On the CPU outputs and states are bit for bit those of single tokens; on a GPU they are those of
// another kernel. Replays and drafts need f32 states, and conv_state in f32 or the dtype of x, which round nothing
// between two calls.
struct GatedDeltaPrepStepArgs {
  static constexpr std::string_view kName = "gated_delta_prep_step";
  ConstTensor x;  // [B,T,2*HK*K + HV*V], q | k | v; f32, f16 or bf16. The convolution's output, or its input if
                  // conv_weight is given
  ConstTensor conv_weight;  // [2*HK*K + HV*V, W], f32, f16 or bf16, optional, W in 2..8; newest token last
  Tensor conv_state;  // [B or slots, 2*HK*K + HV*V, W-1], f32, f16 or bf16: the last inputs, oldest first; updated
  GateInputs gates;
  ConstTensor q_norm_weight;  // [HK,K] for QkNorm::kRms, f32, f16 or bf16
  ConstTensor k_norm_weight;  // [HK,K], dtype of q_norm_weight
  ConstTensor state_in;       // [B,HV,V,K] or a pool, f32 or bf16
  Tensor state_out;           // like state_in; may be state_in itself
  ConstTensor state_indices;  // [B] i32, optional: slot in state_in, state_out and conv_state; -1: zero, write nothing
  Tensor snapshots;           // [B,T,HV,V,K], dtype of the state or f32, optional: the state after each token, for
                              // sequences with state index -1 too
  ConstTensor z;              // [B,T,HV,V], dtype of x, optional: gate of the RMS norm after the recurrence
  ConstTensor norm_weight;    // [V], f32, f16 or bf16, with z
  Tensor y;                   // [B,T,HV,V], f32 or dtype of x
  Tensor fault;               // [1] i32, optional: DeviceFault bits, written on GPUs only
  HeadMap head_map = HeadMap::kUnset;
  StateLayout state_layout = StateLayout::kVK;
  std::optional<float> scale;  // of q, after its norm; nullopt: K^-1/2. 1 where q_norm_weight includes it
  QkNorm qk_norm = QkNorm::kNone;
  float qk_norm_eps = 1e-6F;
  float norm_eps = 1e-6F;
  ConstTensor cu_seqlens;     // [N+1] i32, optional, with B = 1: the states are those of N packed sequences
  Tensor replay_x;            // [N or slots,R,2*HK*K + HV*V], dtype of x, optional, in the rows of the states: tokens
                              // before those of x, without outputs; with drafts, these replace a sequence's first rows
  Tensor replay_a;            // [N or slots,R,HV], dtype of gates.a: their raw gates
  Tensor replay_b;            // [N or slots,R,HV], dtype of gates.a
  ConstTensor replay_counts;  // [N] i32: how many of a sequence's R are replayed, the first ones; 0..R
  bool drafts = false;        // tokens after a sequence's first, at most R with replay_x, do not change state_out
                              // and conv_state
};

// The operations by name; workspace_size(args, stream) and explain(args, stream) go with each (operation.h).
void chunk_local_cumsum(const ChunkLocalCumsumArgs& a, Workspace w, const Stream& s);
void l2norm(const L2normArgs& a, Workspace w, const Stream& s);
void chunk_scaled_dot_kkt(const ChunkScaledDotKktArgs& a, Workspace w, const Stream& s);
void solve_tril(const SolveTrilArgs& a, Workspace w, const Stream& s);
void recompute_w_u(const RecomputeWUArgs& a, Workspace w, const Stream& s);
void chunk_state(const ChunkStateArgs& a, Workspace w, const Stream& s);
void chunk_output(const ChunkOutputArgs& a, Workspace w, const Stream& s);
void chunk_gated_delta_rule(const ChunkGatedDeltaRuleArgs& a, Workspace w, const Stream& s);
void recurrent_gated_delta_rule(const RecurrentGatedDeltaRuleArgs& a, Workspace w, const Stream& s);
void gated_delta_prep_step(const GatedDeltaPrepStepArgs& a, Workspace w, const Stream& s);

}  // namespace thalweg
THALWEG_API_END
