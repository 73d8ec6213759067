#include "ops/dispatch.h"
#include "ops/gated_delta_checks.h"

namespace thalweg {

void validate(const SolveTrilArgs& args, Check& check) {
  Dim b{"B"}, t{"T"}, hv{"HV"}, n{"N"};
  Dim c{"C", args.chunk_size};
  check_chunk_size(check, args.chunk_size);
  check.input("a", args.a, {DType::kF32}, b, t, hv, c);
  check.cu_seqlens(args.cu_seqlens, b, t, n);
  check.output("a_inv", args.a_inv, {DType::kF32, DType::kBF16}, b, t, hv, c);
  check.may_alias("a_inv", "a");
}

THALWEG_OPERATION(solve_tril, SolveTrilArgs);

}  // namespace thalweg
