#include "ops/dispatch.h"
#include "ops/gated_delta_checks.h"

namespace thalweg {

void validate(const ChunkLocalCumsumArgs& args, Check& check) {
  Dim b{"B"}, t{"T"}, hv{"HV"}, n{"N"};
  check.input("g", args.g, {DType::kF32}, b, t, hv);
  check_chunk_size(check, args.chunk_size);
  check.cu_seqlens(args.cu_seqlens, b, t, n);
  check.output("g_cumsum", args.g_cumsum, {DType::kF32}, b, t, hv);
  check.may_alias("g_cumsum", "g");
}

THALWEG_OPERATION(chunk_local_cumsum, ChunkLocalCumsumArgs);

}  // namespace thalweg
