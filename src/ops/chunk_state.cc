#include "core/sequences.h"
#include "ops/dispatch.h"
#include "ops/gated_delta_checks.h"

namespace thalweg {

void validate(const ChunkStateArgs& args, Check& check) {
  Dim b{"B"}, t{"T"}, hk{"HK"}, hv{"HV"}, k{"K"}, v{"V"}, n{"N"}, chunks{"NC"};
  check_chunk_size(check, args.chunk_size);
  check.input("k", args.k, kFloatTypes, b, t, hk, k);
  check.input("w", args.w, {args.k.dtype}, b, t, hv, k);
  check.input("u", args.u, {args.k.dtype}, b, t, hv, v);
  check_head_sizes(check, k, v);
  check.input("g_cumsum", args.g_cumsum, {DType::kF32}, b, t, hv);
  check_head_map(check, args.head_map, hk, hv);
  check_rounding(check, args.rounding, args.k.dtype);
  check.cu_seqlens(args.cu_seqlens, b, t, n);
  check_states(check, "initial_state", args.initial_state, "final_state", args.final_state, args.state_indices,
               args.state_layout, {DType::kF32, DType::kBF16}, n, hv, v, k);
  if (args.h.defined()) {
    if (!args.cu_seqlens.defined() || check.host_values()) {
      chunks.value = Sequences(args.cu_seqlens, b.value, t.value).chunks(args.chunk_size);
    }
    check.output("h", args.h, {args.k.dtype}, b, chunks, hv, v, k);
  }
  if (args.v_new.defined()) check.output("v_new", args.v_new, {args.k.dtype}, b, t, hv, v);
}

THALWEG_OPERATION(chunk_state, ChunkStateArgs);

}  // namespace thalweg
