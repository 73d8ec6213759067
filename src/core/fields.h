#pragma once

// The fields of every Args struct by name, for code that handles all operations alike: the C ABI and the Python
// extension. A static_assert at each list holds it to the struct: all fields, in order.

#include <optional>
#include <type_traits>
#include <utility>

#include "core/kernel.h"

namespace thalweg {

// Fields<Args>::each(fn, structs...) calls fn("x", structs.x...) for each field x, those of bases first. The structs
// are an Args and structs with the same field names.
template <class Args>
struct Fields;

struct NoBase {};

template <>
struct Fields<NoBase> {
  template <class Function, class... Structs>
  static void each(const Function&, Structs&...) {}
};

namespace detail {

template <class Struct, class... Initializers>
concept InitializedBy = requires {
  Struct{std::declval<Initializers>()...};
};

// Whether a Struct, initialized with these types in order, has no further member that one of `More` could initialize.
template <class Struct, class... More>
struct Exactly {
  template <class... Initializers>
  static constexpr bool by(TypeList<Initializers...>) {
    return InitializedBy<Struct, Initializers...> && !(InitializedBy<Struct, Initializers..., More> || ...);
  }
};

template <class First, class... Rest>
TypeList<Rest...> without_first(TypeList<First, Rest...>);

template <class... First, class... Second>
TypeList<First..., Second...> joined(TypeList<First...>, TypeList<Second...>);

template <class Args>
using OwnTypes = typename Fields<Args>::template Types<Args>;

// The types that an Args is initialized with: its base first, then its own fields.
template <class Args, class Base>
using Initializers =
    std::conditional_t<std::is_same_v<Base, NoBase>, OwnTypes<Args>,
                       decltype(joined(std::declval<TypeList<Base>>(), std::declval<OwnTypes<Args>>()))>;

template <class Args>
constexpr bool lists_all_fields() {
  using Whole = Exactly<Args, ConstTensor, Tensor, int, float, bool, std::optional<float>, GateInputs, HeadMap,
                        StateLayout, Rounding, QkNorm, Activation, MatmulPrecision, RouterScore>;
  return Whole::by(Initializers<Args, typename Fields<Args>::Base>{});
}

}  // namespace detail
}  // namespace thalweg

// THALWEG_EACH_FIELD(m, a, b, c) is m(a) m(b) m(c), for up to 64 of them.
#define THALWEG_PARENTHESES ()
#define THALWEG_EXPAND(...) THALWEG_EXPAND_A(THALWEG_EXPAND_A(THALWEG_EXPAND_A(THALWEG_EXPAND_A(__VA_ARGS__))))
#define THALWEG_EXPAND_A(...) THALWEG_EXPAND_B(THALWEG_EXPAND_B(THALWEG_EXPAND_B(THALWEG_EXPAND_B(__VA_ARGS__))))
#define THALWEG_EXPAND_B(...) THALWEG_EXPAND_C(THALWEG_EXPAND_C(THALWEG_EXPAND_C(THALWEG_EXPAND_C(__VA_ARGS__))))
#define THALWEG_EXPAND_C(...) __VA_ARGS__
#define THALWEG_EACH_FIELD(m, ...) __VA_OPT__(THALWEG_EXPAND(THALWEG_EACH_STEP(m, __VA_ARGS__)))
#define THALWEG_EACH_STEP(m, field, ...) m(field) __VA_OPT__(THALWEG_EACH_AGAIN THALWEG_PARENTHESES(m, __VA_ARGS__))
#define THALWEG_EACH_AGAIN() THALWEG_EACH_STEP
#define THALWEG_VISIT_FIELD(field) fn(#field, structs.field...);
#define THALWEG_TYPE_OF_FIELD(field) , decltype(Struct::field)

// Each type is listed after a comma; `void` stands before the first comma and is dropped.
#define THALWEG_FIELDS_WITH_BASE(ArgsName, BaseName, ...)                                      \
  template <>                                                                                  \
  struct Fields<ArgsName> {                                                                    \
    using Base = BaseName;                                                                     \
    template <class Struct>                                                                    \
    using Types = decltype(detail::without_first(                                              \
        TypeList<void __VA_OPT__(THALWEG_EACH_FIELD(THALWEG_TYPE_OF_FIELD, __VA_ARGS__))>{})); \
    template <class Function, class... Structs>                                                \
    static void each(const Function& fn, Structs&... structs) {                                \
      Fields<Base>::each(fn, structs...);                                                      \
      THALWEG_EACH_FIELD(THALWEG_VISIT_FIELD, __VA_ARGS__)                                     \
    }                                                                                          \
  };                                                                                           \
  static_assert(detail::lists_all_fields<ArgsName>(), #ArgsName " has other fields than are listed here")
#define THALWEG_FIELDS(ArgsName, ...) THALWEG_FIELDS_WITH_BASE(ArgsName, NoBase, __VA_ARGS__)

namespace thalweg {

THALWEG_FIELDS(ChunkLocalCumsumArgs, g, cu_seqlens, g_cumsum, chunk_size);
THALWEG_FIELDS(L2normArgs, x, y, eps);
THALWEG_FIELDS(ChunkScaledDotKktArgs, k, beta, g_cumsum, cu_seqlens, a, chunk_size, head_map, rounding);
THALWEG_FIELDS(SolveTrilArgs, a, cu_seqlens, a_inv, chunk_size);
THALWEG_FIELDS(RecomputeWUArgs, k, v, beta, g_cumsum, a_inv, cu_seqlens, w, u, chunk_size, head_map, rounding);
THALWEG_FIELDS(ChunkStateArgs, k, w, u, g_cumsum, initial_state, state_indices, cu_seqlens, h, v_new, final_state,
               chunk_size, head_map, state_layout, rounding);
THALWEG_FIELDS(ChunkOutputArgs, q, k, v_new, h, g_cumsum, cu_seqlens, o, scale, chunk_size, head_map, rounding);
THALWEG_FIELDS(GateInputs, a, b, a_log, dt_bias);
THALWEG_FIELDS(GatedDeltaRuleArgs, q, k, v, g, beta, gates, initial_state, state_indices, cu_seqlens, o, final_state,
               head_map, state_layout, scale, qk_norm, qk_norm_eps, q_norm_weight, k_norm_weight, fault);
THALWEG_FIELDS_WITH_BASE(ChunkGatedDeltaRuleArgs, GatedDeltaRuleArgs, checkpoints, checkpoint_tokens, bf16_operands);
THALWEG_FIELDS_WITH_BASE(RecurrentGatedDeltaRuleArgs, GatedDeltaRuleArgs, snapshots);
THALWEG_FIELDS(GatedDeltaPrepStepArgs, x, conv_weight, conv_state, gates, q_norm_weight, k_norm_weight, state_in,
               state_out, state_indices, snapshots, z, norm_weight, y, fault, head_map, state_layout, scale, qk_norm,
               qk_norm_eps, norm_eps, cu_seqlens, replay_x, replay_a, replay_b, replay_counts, drafts);
THALWEG_FIELDS(CausalConv1dArgs, x, weight, bias, initial_state, final_state, state_indices, cu_seqlens, y, activation);
THALWEG_FIELDS(CausalConv1dUpdateArgs, x, weight, bias, conv_state, state_indices, y, activation);
THALWEG_FIELDS(RmsNormArgs, x, delta, weight, sum, y, eps, weight_plus_one);
THALWEG_FIELDS(GatedRmsNormArgs, x, z, weight, y, eps);
THALWEG_FIELDS(RopeArgs, x, positions, frequencies, norm_weight, y, rotary_dim, theta, scale, norm_eps,
               norm_weight_plus_one);
THALWEG_FIELDS(AttentionArgs, q, k_cache, v_cache, cu_seqlens, lengths, slots, pages, gate, o, scale, bf16_operands);
THALWEG_FIELDS(StoreKvArgs, k, v, cu_seqlens, lengths, slots, pages, k_cache, v_cache);
THALWEG_FIELDS(SplitQkvzArgs, x, q, k, v, z);
THALWEG_FIELDS(LinearArgs, x, weight, bias, y, precision);
THALWEG_FIELDS(ProjectionsArgs, x, weight_0, weight_1, weight_2, weight_3, y_0, y_1, y_2, y_3, precision);
THALWEG_FIELDS(EmbeddingArgs, ids, table, y);
THALWEG_FIELDS(AddArgs, a, b, y);
THALWEG_FIELDS(SwigluArgs, gate, up, y);
THALWEG_FIELDS(RouteTopKArgs, router_logits, bias, expert_ids, expert_weights, score, renormalize);
THALWEG_FIELDS(ExpertRowsArgs, expert_ids, expert_offsets, rows, fault);
THALWEG_FIELDS(ExpertMatmulArgs, weight, x, expert_ids, y, fault, precision);
THALWEG_FIELDS_WITH_BASE(MulMmIdArgs, ExpertMatmulArgs);
THALWEG_FIELDS_WITH_BASE(MulMvIdArgs, ExpertMatmulArgs);
THALWEG_FIELDS_WITH_BASE(MulMatIdArgs, ExpertMatmulArgs);
THALWEG_FIELDS(MoeFfnArgs, x, router, gate, up, down, shared_gate, shared_up, shared_down, shared_router, y, top_k,
               renormalize, precision, first_expert, score, router_bias);
THALWEG_FIELDS(SampleTokensArgs, logits, lengths, history, slots, temperature, top_k, top_p, min_p, repeat_penalty,
               repeat_last, seed, tokens, fault, allowed);
THALWEG_FIELDS(LogprobsArgs, logits, tokens, logprob, top_tokens, top_logprobs);
THALWEG_FIELDS(AdvanceArgs, tokens, end_tokens, ids, positions, lengths, slots, history);
THALWEG_FIELDS(DequantizeArgs, blocks, values);
THALWEG_FIELDS(QuantizeArgs, values, blocks);

}  // namespace thalweg
