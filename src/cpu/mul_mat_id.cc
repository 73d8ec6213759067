#include "cpu/expert_matmul.h"
#include "cpu/moe.h"
#include "cpu/scratch.h"

namespace thalweg::cpu {
namespace {

// ---- Rows grouped by expert: each weight is decoded once.

struct GroupedPlan {
  ExpertRows lists;
  Activations activations;
  float* scratch;

  GroupedPlan(const ExpertMatmulArgs& args, bool q8, const Stream& stream, Arena arena)
      : lists(args.weight.dim(0), args.expert_ids.size(), arena),
        activations(args.x, q8, arena),
        scratch(arena.take<float>(product_floats() * thread_count(stream))),
        bytes(arena.used()) {}

  std::size_t bytes;
};

template <class Args, bool kFast>
std::size_t grouped_workspace(const Args& args, const Stream& stream) {
  return GroupedPlan(args, kFast, stream, Arena()).bytes;
}

void store_row(const ExpertMatmulArgs& args, std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
  const std::int64_t slots = args.expert_ids.dim(1);
  char* row = static_cast<char*>(args.y.row(pair / slots, pair % slots));
  vector_ops().store(args.y.dtype, sums, count, row + bytes_of(args.y.dtype, n));
}

template <class Args, bool kFast>
void run_grouped(const Args& args, Workspace workspace, const Stream& stream) {
  GroupedPlan plan(args, kFast, stream, Arena(workspace));
  plan.lists.build(PairIds(args.expert_ids));
  plan.activations.prepare(stream);
  const std::int64_t slots = args.expert_ids.dim(1);
  for_each_expert_task(stream, plan.lists, args.weight.dim(1), plan.scratch,
                       [&](std::int64_t expert, RowRange range, float* scratch) {
                         multiply_expert(
                             args.weight, expert, range, kFast, plan.lists,
                             [&](std::int64_t pair) { return plan.activations.row(pair / slots, pair % slots); },
                             [&](std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
                               store_row(args, pair, n, count, sums);
                             },
                             scratch);
                       });
}

// ---- One product of matrix and vector per slot.

struct SlotPlan {
  Activations activations;
  float* scratch;

  SlotPlan(const ExpertMatmulArgs& args, bool q8, const Stream& stream, Arena arena)
      : activations(args.x, q8, arena),
        scratch(arena.take<float>(product_floats() * thread_count(stream))),
        bytes(arena.used()) {}

  std::size_t bytes;
};

template <class Args, bool kFast>
std::size_t slot_workspace(const Args& args, const Stream& stream) {
  return SlotPlan(args, kFast, stream, Arena()).bytes;
}

template <class Args, bool kFast>
void run_slots(const Args& args, Workspace workspace, const Stream& stream) {
  const SlotPlan plan(args, kFast, stream, Arena(workspace));
  plan.activations.prepare(stream);
  const PairIds id(args.expert_ids);
  const std::int64_t slots = args.expert_ids.dim(1);
  const std::int64_t rows = args.weight.dim(1);
  const std::int64_t each = pieces_of(rows);
  for_each_piece(stream, args.expert_ids.size() * each, [&](std::int64_t piece, int worker, bool continues) {
    const std::int64_t pair = piece / each;
    multiply_rows(
        WeightMatrix::of(args.weight, id(pair)), piece_range(rows, piece % each, continues), kFast, 1,
        [&](std::int64_t) { return plan.activations.row(pair / slots, pair % slots); },
        [&](std::int64_t, std::int64_t n, std::int64_t count, const float* sums) {
          store_row(args, pair, n, count, sums);
        },
        plan.scratch + worker * product_floats());
  });
}

// ---- Kernels

template <class Args>
std::string supports_q8(const Args& args, const Stream&) {
  return q8_reason(args.precision, args.weight.dtype);
}
template <class Args>
std::string remark_q8(const Args&) {
  return q8_remark();
}
template <class Args>
std::string remark_exact(const Args& args) {
  return exact_remark(args.precision, args.weight.dtype);
}

constexpr Kernel<MulMmIdArgs> kMm[] = {{"q8", supports_q8<MulMmIdArgs>, grouped_workspace<MulMmIdArgs, true>,
                                        run_grouped<MulMmIdArgs, true>, remark_q8<MulMmIdArgs>},
                                       {"exact", always_supported<MulMmIdArgs>, grouped_workspace<MulMmIdArgs, false>,
                                        run_grouped<MulMmIdArgs, false>, remark_exact<MulMmIdArgs>}};

constexpr Kernel<MulMvIdArgs> kMv[] = {{"q8", supports_q8<MulMvIdArgs>, slot_workspace<MulMvIdArgs, true>,
                                        run_slots<MulMvIdArgs, true>, remark_q8<MulMvIdArgs>},
                                       {"exact", always_supported<MulMvIdArgs>, slot_workspace<MulMvIdArgs, false>,
                                        run_slots<MulMvIdArgs, false>, remark_exact<MulMvIdArgs>}};

// The ids are not known to explain(), but one token's experts differ from each other: nothing to group.
constexpr std::int64_t kSlotTokens = 1;

std::string few_tokens_reason(const MulMatIdArgs& args) {
  const std::int64_t tokens = args.expert_ids.dim(0);
  if (tokens <= kSlotTokens) return {};
  return std::to_string(tokens) + " tokens, more than " + std::to_string(kSlotTokens) +
         ": tokens that share an expert share the decoding of its weights";
}
std::string supports_q8_slots(const MulMatIdArgs& args, const Stream& stream) {
  const std::string reason = supports_q8(args, stream);
  return reason.empty() ? few_tokens_reason(args) : reason;
}
std::string supports_slots(const MulMatIdArgs& args, const Stream&) { return few_tokens_reason(args); }

constexpr Kernel<MulMatIdArgs> kMat[] = {{"q8_mv", supports_q8_slots, slot_workspace<MulMatIdArgs, true>,
                                          run_slots<MulMatIdArgs, true>, remark_q8<MulMatIdArgs>},
                                         {"q8_mm", supports_q8<MulMatIdArgs>, grouped_workspace<MulMatIdArgs, true>,
                                          run_grouped<MulMatIdArgs, true>, remark_q8<MulMatIdArgs>},
                                         {"mv", supports_slots, slot_workspace<MulMatIdArgs, false>,
                                          run_slots<MulMatIdArgs, false>, remark_exact<MulMatIdArgs>},
                                         {"mm", always_supported<MulMatIdArgs>, grouped_workspace<MulMatIdArgs, false>,
                                          run_grouped<MulMatIdArgs, false>, remark_exact<MulMatIdArgs>}};

}  // namespace

KernelList<MulMmIdArgs> mul_mm_id_kernels() { return kMm; }
KernelList<MulMvIdArgs> mul_mv_id_kernels() { return kMv; }
KernelList<MulMatIdArgs> mul_mat_id_kernels() { return kMat; }

}  // namespace thalweg::cpu
