#include "core/sequences.h"
#include "ops/dispatch.h"
#include "ops/gated_delta_checks.h"

namespace thalweg {

void validate(const ChunkOutputArgs& args, Check& check) {
  Dim b{"B"}, t{"T"}, hk{"HK"}, hv{"HV"}, k{"K"}, v{"V"}, n{"N"}, chunks{"NC"};
  check_chunk_size(check, args.chunk_size);
  check.input("q", args.q, kFloatTypes, b, t, hk, k);
  check.input("k", args.k, {args.q.dtype}, b, t, hk, k);
  check.input("v_new", args.v_new, {args.q.dtype}, b, t, hv, v);
  check_head_sizes(check, k, v);
  check.input("g_cumsum", args.g_cumsum, {DType::kF32}, b, t, hv);
  check_head_map(check, args.head_map, hk, hv);
  check_rounding(check, args.rounding, args.q.dtype);
  check.cu_seqlens(args.cu_seqlens, b, t, n);
  if (!args.cu_seqlens.defined() || check.host_values()) {
    chunks.value = Sequences(args.cu_seqlens, b.value, t.value).chunks(args.chunk_size);
  }
  check.input("h", args.h, {args.q.dtype}, b, chunks, hv, v, k);
  check.output("o", args.o, {DType::kF32, args.q.dtype}, b, t, hv, v);
}

THALWEG_OPERATION(chunk_output, ChunkOutputArgs);

}  // namespace thalweg
