#include "ops/dispatch.h"
#include "ops/gated_delta_checks.h"

namespace thalweg {

void validate(const RecomputeWUArgs& args, Check& check) {
  Dim b{"B"}, t{"T"}, hk{"HK"}, hv{"HV"}, k{"K"}, v{"V"}, n{"N"};
  Dim c{"C", args.chunk_size};
  check_chunk_size(check, args.chunk_size);
  check.input("k", args.k, kFloatTypes, b, t, hk, k);
  check.input("v", args.v, {args.k.dtype}, b, t, hv, v);
  check_head_sizes(check, k, v);
  check.input("beta", args.beta, {DType::kF32}, b, t, hv);
  check.input("g_cumsum", args.g_cumsum, {DType::kF32}, b, t, hv);
  check.input("a_inv", args.a_inv, {DType::kF32, DType::kBF16}, b, t, hv, c);
  check_head_map(check, args.head_map, hk, hv);
  check_rounding(check, args.rounding, args.k.dtype);
  check.cu_seqlens(args.cu_seqlens, b, t, n);
  check.output("w", args.w, {args.k.dtype}, b, t, hv, k);
  check.output("u", args.u, {args.k.dtype}, b, t, hv, v);
}

THALWEG_OPERATION(recompute_w_u, RecomputeWUArgs);

}  // namespace thalweg
