#include "ops/dispatch.h"
#include "ops/gated_delta_checks.h"

namespace thalweg {

void validate(const ChunkScaledDotKktArgs& args, Check& check) {
  Dim b{"B"}, t{"T"}, hk{"HK"}, hv{"HV"}, k{"K"}, n{"N"};
  Dim c{"C", args.chunk_size};
  check_chunk_size(check, args.chunk_size);
  check.input("k", args.k, kFloatTypes, b, t, hk, k);
  check.input("beta", args.beta, {DType::kF32}, b, t, hv);
  check.input("g_cumsum", args.g_cumsum, {DType::kF32}, b, t, hv);
  check_head_map(check, args.head_map, hk, hv);
  check_rounding(check, args.rounding, args.k.dtype);
  check.cu_seqlens(args.cu_seqlens, b, t, n);
  check.output("a", args.a, {DType::kF32}, b, t, hv, c);
}

THALWEG_OPERATION(chunk_scaled_dot_kkt, ChunkScaledDotKktArgs);

}  // namespace thalweg
