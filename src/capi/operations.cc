// The operations: generated from the lists of fields, so that a field that only the C++ struct or only
// its C mirror has does not compile.

#include "capi/convert.h"
#include "capi/errors.h"
#include "core/fields.h"

namespace thalweg::capi {

void FromC::operator()(const char*, GateInputs& to, const thalweg_gate_inputs& from) const {
  Fields<GateInputs>::each(*this, to, from);
}

namespace {

// The types of the mirror's members, as listed for Args and its bases.
template <class Args, class Mirror>
struct MirrorTypes {
  using type = decltype(detail::joined(std::declval<typename MirrorTypes<typename Fields<Args>::Base, Mirror>::type>(),
                                       std::declval<typename Fields<Args>::template Types<Mirror>>()));
};
template <class Mirror>
struct MirrorTypes<NoBase, Mirror> {
  using type = TypeList<>;
};

template <class Args, class Mirror>
constexpr bool mirrors() {
  return detail::Exactly<Mirror, thalweg_tensor, thalweg_gate_inputs, std::int32_t, float, bool, const float*>::by(
      typename MirrorTypes<Args, Mirror>::type{});
}

template <class Args, class Mirror>
void set_defaults(Mirror* mirror) {
  if (mirror == nullptr) return;
  *mirror = Mirror{};
  const Args args;
  Fields<Args>::each(DefaultsToC{}, args, *mirror);
}

template <class Args, class Mirror>
Args args_of(const Mirror* mirror) {
  require_pointer(mirror, Args::kName.data(), "args");
  Args args;
  Fields<Args>::each(FromC(Args::kName.data()), args, *mirror);
  return args;
}

// "  cpu/vector: runs" and so on, a line for each kernel.
std::string explanation_text(const Explanation& explanation) {
  std::string text;
  for (std::size_t i = 0; i < explanation.kernels.size(); ++i) {
    const KernelVerdict& kernel = explanation.kernels[i];
    text += explanation.backend + "/" + kernel.kernel + ": ";
    if (static_cast<int>(i) == explanation.chosen) {
      text += "runs";
    } else {
      text += kernel.supported ? "could run" : "cannot run";
    }
    if (!kernel.reason.empty()) text += ", " + kernel.reason;
    text += "\n";
  }
  return text;
}

template <class... Args>
constexpr std::size_t count(TypeList<Args...>) {
  return sizeof...(Args);
}

#define THALWEG_COUNT(name) +1
static_assert((0 THALWEG_OPERATIONS(THALWEG_COUNT)) == count(Operations{}), "thalweg.h lacks an operation");

}  // namespace
}  // namespace thalweg::capi

#define THALWEG_C_OPERATION(name, Args)                                                                              \
  static_assert(thalweg::Args::kName == #name);                                                                      \
  static_assert(thalweg::capi::mirrors<thalweg::Args, thalweg_##name##_args>(), "thalweg_" #name "_args differs");   \
  void thalweg_##name##_args_init(thalweg_##name##_args* args) { thalweg::capi::set_defaults<thalweg::Args>(args); } \
  thalweg_status thalweg_##name##_workspace_size(const thalweg_##name##_args* args, const thalweg_stream* stream,    \
                                                 size_t* bytes) {                                                    \
    return thalweg::capi::guarded([&] {                                                                              \
      thalweg::capi::require_pointer(bytes, #name, "bytes");                                                         \
      *bytes = workspace_size(thalweg::capi::args_of<thalweg::Args>(args), thalweg::capi::stream_of(stream, #name)); \
    });                                                                                                              \
  }                                                                                                                  \
  thalweg_status thalweg_##name##_explain(const thalweg_##name##_args* args, const thalweg_stream* stream,           \
                                          const char** text) {                                                       \
    return thalweg::capi::guarded([&] {                                                                              \
      thalweg::capi::require_pointer(text, #name, "text");                                                           \
      std::string& kept = thalweg::capi::thread_state().text;                                                        \
      kept = thalweg::capi::explanation_text(                                                                        \
          explain(thalweg::capi::args_of<thalweg::Args>(args), thalweg::capi::stream_of(stream, #name)));            \
      *text = kept.c_str();                                                                                          \
    });                                                                                                              \
  }                                                                                                                  \
  thalweg_status thalweg_##name(const thalweg_##name##_args* args, void* workspace, size_t workspace_bytes,          \
                                const thalweg_stream* stream) {                                                      \
    return thalweg::capi::guarded([&] {                                                                              \
      run(thalweg::capi::args_of<thalweg::Args>(args), thalweg::Workspace{workspace, workspace_bytes},               \
          thalweg::capi::stream_of(stream, #name));                                                                  \
    });                                                                                                              \
  }

THALWEG_C_OPERATION(chunk_local_cumsum, ChunkLocalCumsumArgs)
THALWEG_C_OPERATION(l2norm, L2normArgs)
THALWEG_C_OPERATION(chunk_scaled_dot_kkt, ChunkScaledDotKktArgs)
THALWEG_C_OPERATION(solve_tril, SolveTrilArgs)
THALWEG_C_OPERATION(recompute_w_u, RecomputeWUArgs)
THALWEG_C_OPERATION(chunk_state, ChunkStateArgs)
THALWEG_C_OPERATION(chunk_output, ChunkOutputArgs)
THALWEG_C_OPERATION(chunk_gated_delta_rule, ChunkGatedDeltaRuleArgs)
THALWEG_C_OPERATION(recurrent_gated_delta_rule, RecurrentGatedDeltaRuleArgs)
THALWEG_C_OPERATION(gated_delta_prep_step, GatedDeltaPrepStepArgs)
THALWEG_C_OPERATION(causal_conv1d, CausalConv1dArgs)
THALWEG_C_OPERATION(causal_conv1d_update, CausalConv1dUpdateArgs)
THALWEG_C_OPERATION(rms_norm, RmsNormArgs)
THALWEG_C_OPERATION(gated_rms_norm, GatedRmsNormArgs)
THALWEG_C_OPERATION(rope, RopeArgs)
THALWEG_C_OPERATION(attention, AttentionArgs)
THALWEG_C_OPERATION(store_kv, StoreKvArgs)
THALWEG_C_OPERATION(split_qkvz, SplitQkvzArgs)
THALWEG_C_OPERATION(linear, LinearArgs)
THALWEG_C_OPERATION(embedding, EmbeddingArgs)
THALWEG_C_OPERATION(add, AddArgs)
THALWEG_C_OPERATION(swiglu, SwigluArgs)
THALWEG_C_OPERATION(route_top_k, RouteTopKArgs)
THALWEG_C_OPERATION(expert_rows, ExpertRowsArgs)
THALWEG_C_OPERATION(mul_mm_id, MulMmIdArgs)
THALWEG_C_OPERATION(mul_mv_id, MulMvIdArgs)
THALWEG_C_OPERATION(mul_mat_id, MulMatIdArgs)
THALWEG_C_OPERATION(moe_ffn, MoeFfnArgs)
THALWEG_C_OPERATION(sample_tokens, SampleTokensArgs)
THALWEG_C_OPERATION(logprobs, LogprobsArgs)
THALWEG_C_OPERATION(advance, AdvanceArgs)
THALWEG_C_OPERATION(dequantize, DequantizeArgs)
THALWEG_C_OPERATION(quantize, QuantizeArgs)
