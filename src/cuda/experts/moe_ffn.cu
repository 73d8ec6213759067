// moe_ffn: the list of its kernels, and the costs that decide among these.
//
//   staged  few tokens: three launches of products of matrix and vector; all rows of a warp are copied at once
//           (moe_staged.h)
//   matvec  the same for any format and size, with rings (moe_matvec.h)
//   grouped a few tokens of each expert: weights are read once and multiplied as bytes (grouped.h)
//   stream  each expert's weights are read once, one set of row lists serves all matmuls; the shared expert by tiles
//   wgmma   gate and up in one pass over the tokens with SwiGLU as its epilogue, then down, both by tiles of many rows
//   steps   each matmul by the kernel that mul_mat_id or linear chooses, for any format
//   exact   the same in f32, for MatmulPrecision::kExact

#include "cuda/experts/moe_ffn.h"

#include "cuda/kernels.h"
#include "cuda/row_hint.h"
#include "cuda/tuning.h"

namespace thalweg::cu {
namespace {

using tuning::experts::Load;
namespace costs = tuning::experts::moe_ffn;

std::int64_t planned_tokens(const MoeFfnArgs& args, const Stream& stream) {
  return planned_rows(num_tokens(args), stream);
}

Load load_of(const MoeFfnArgs& args, const Stream& stream) {
  const std::int64_t pairs = planned_tokens(args, stream) * args.top_k;
  return pairs >= tuning::experts::kTiledPairsPerExpertOfFfn * num_experts(args) ? Load::kMany : Load::kSome;
}

double matvec_cost(const MoeFfnArgs& args, const Stream& stream) {
  const bool few = planned_tokens(args, stream) <= tuning::experts::kMatvecTokens;
  return costs::kMatvec.at(few ? Load::kFew : load_of(args, stream));
}
double staged_cost(const MoeFfnArgs& args, const Stream& stream) {
  const double factor = num_tokens(args) == 1 ? costs::kStagedOne : costs::kStagedSome;
  return cost_by_count(factor * matvec_cost(args, stream), stream);
}
double tiles_cost(const MoeFfnArgs& args, const Stream& stream) { return costs::kTiles.at(load_of(args, stream)); }
double grouped_cost(const MoeFfnArgs& args, const Stream& stream) {
  if (stream.rows == RowHint::kMany) return tuning::kAgainstHint;  // beyond its tokens another kernel would run
  return planned_tokens(args, stream) < costs::kGroupedTokens ? costs::kGroupedFew : costs::kGrouped;
}
double stream_cost(const MoeFfnArgs& args, const Stream& stream) {
  return cost_by_count(costs::kStream.at(load_of(args, stream)), stream);
}
double steps_cost(const MoeFfnArgs& args, const Stream& stream) { return costs::kSteps.at(load_of(args, stream)); }
double exact_cost(const MoeFfnArgs&, const Stream&) { return tuning::experts::kExact; }

constexpr Kernel<MoeFfnArgs> kKernels[] = {
    {.name = "staged",
     .supports = moe_staged_supports,
     .workspace = moe_staged_workspace,
     .run = run_moe_staged,
     .arithmetic = Arithmetic::k16Bit,
     .cost = staged_cost},
    {.name = "matvec",
     .supports = moe_matvec_supports,
     .workspace = moe_matvec_workspace,
     .run = run_moe_matvec,
     .arithmetic = Arithmetic::k16Bit,
     .cost = matvec_cost},
    {.name = "grouped",
     .supports = moe_grouped_supports,
     .workspace = moe_grouped_workspace,
     .run = run_moe_grouped,
     .remark = moe_grouped_remark,
     .arithmetic = Arithmetic::k16Bit,
     .cost = grouped_cost},
    {.name = "stream",
     .supports = moe_stream_supports,
     .workspace = moe_stream_workspace,
     .run = run_moe_stream,
     .remark = moe_stream_remark,
     .arithmetic = Arithmetic::k16Bit,
     .cost = stream_cost},
    {.name = "wgmma",
     .supports = moe_tiles_supports,
     .workspace = moe_tiles_workspace,
     .run = run_moe_tiles,
     .remark = routing_remark,
     .arithmetic = Arithmetic::k16Bit,
     .cost = tiles_cost},
    {.name = "steps",
     .supports = moe_steps_supports,
     .workspace = moe_steps_workspace,
     .run = run_moe_steps,
     .remark = moe_steps_remark,
     .arithmetic = Arithmetic::k16Bit,
     .cost = steps_cost},
    {.name = "exact",
     .supports = moe_exact_supports,
     .workspace = moe_exact_workspace,
     .run = run_moe_exact,
     .remark = moe_exact_remark,
     .cost = exact_cost},
};

}  // namespace

KernelList<MoeFfnArgs> moe_ffn_kernels() { return kKernels; }

}  // namespace thalweg::cu
