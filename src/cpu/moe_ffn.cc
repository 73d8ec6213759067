#include <cmath>

#include "cpu/expert_matmul.h"
#include "cpu/moe.h"
#include "cpu/moe_ffn.h"
#include "cpu/tile_matmul.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

bool any_q8_input(const MoeFfnArgs& args) {
  return uses_q8(args.precision, args.gate.dtype) ||
         (args.shared_gate.defined() &&
          (uses_q8(args.precision, args.shared_gate.dtype) || uses_q8(args.precision, args.shared_up.dtype)));
}

struct FfnMemory {
  FfnSteps steps;
  bool q8;
  Activations rounded;  // x in 8 bits, where a product needs them
  Activations activated_rows;
  Activations shared_rows;
  std::size_t bytes;

  FfnMemory(const MoeFfnArgs& args, const Stream& stream, Arena arena)
      : steps(args, product_floats(), stream, arena),
        q8(any_q8_input(args)),
        rounded(args.x, q8, arena),
        activated_rows(steps.activated, steps.tokens * steps.slots, steps.inner,
                       uses_q8(args.precision, args.down.dtype), arena),
        shared_rows(steps.shared_activated, steps.tokens, steps.shared_inner,
                    uses_q8(args.precision, args.shared_down.dtype), arena),
        bytes(arena.used()) {}

  const float* x(bool of_q8, std::int64_t t) const { return of_q8 ? rounded.row(t, 0) : steps.x.row(t, 0); }
};

std::size_t ffn_workspace(const MoeFfnArgs& args, const Stream& stream) {
  return FfnMemory(args, stream, Arena()).bytes;
}

// The segments of the hit experts' matrices, then those of the shared expert's, as the tasks of one loop: one after the
// other, few tokens would leave most threads of a large machine idle. `of_shared` calls body(range, first token,
// tokens, scratch) for at most kRowsPerPass tokens.
template <class OfExpert, class OfShared>
void for_each_ffn_task(const FfnSteps& steps, const ConstTensor& weight, std::int64_t shared_n, bool q8,
                       const Stream& stream, OfExpert&& of_expert, OfShared&& of_shared) {
  const std::int64_t n = weight.dim(1);
  const ExpertRows& lists = steps.lists;
  const std::int64_t passes = (steps.tokens + kRowsPerPass - 1) / kRowsPerPass;
  const std::int64_t each = rows_per_segment(lists.num_hits * n + passes * shared_n, steps.tokens, stream);
  const auto segments_in = [each](std::int64_t rows) { return (rows + each - 1) / each; };
  const std::int64_t segments = segments_in(n);
  const std::int64_t expert_tasks = lists.num_hits * segments;
  const std::int64_t tasks = expert_tasks + segments_in(shared_n) * passes;
  const std::int64_t pairs_each = lists.num_hits > 0 ? lists.pairs / lists.num_hits : 0;
  const double task_ns = segment_ns(weight.dtype, std::min(n, each), weight.dim(2), pairs_each, q8);
  for_each_segment(stream, tasks, task_ns, [&](std::int64_t i, int worker, bool continues) {
    float* const scratch = steps.scratch + worker * steps.scratch_floats;
    if (i < expert_tasks) {
      of_expert(lists.hits[i / segments], segment_range(n, i % segments, continues, each), scratch);
    } else {
      const std::int64_t own = i - expert_tasks;
      const std::int64_t first = own % passes * kRowsPerPass;
      of_shared(segment_range(shared_n, own / passes, continues && own > 0, each), first,
                std::min(kRowsPerPass, steps.tokens - first), scratch);
    }
  });
}

// activated[pair,:] = silu(gate x) * (up x), and the same of the shared expert.
void run_gates(const MoeFfnArgs& args, const FfnMemory& memory, const Stream& stream) {
  const FfnSteps& steps = memory.steps;
  const bool q8 = uses_q8(args.precision, args.gate.dtype);
  const auto input = [&](std::int64_t pair) { return memory.x(q8, pair / steps.slots); };
  const auto copy_to = [](const float* sums, std::int64_t count, float* gate) { copy_sums(sums, count, gate); };
  const auto activate = [](const float* sums, std::int64_t count, float* gate) {
    vector_ops().silu_multiply(gate, sums, count, gate);
  };
  const auto of_expert = [&](std::int64_t expert, RowRange range, float* scratch) {
    const auto multiply = [&](const ConstTensor& weight, auto&& take) {
      multiply_expert(
          weight, expert, range, q8, steps.lists, input,
          [&](std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
            take(sums, count, steps.activated_row(pair) + n);
          },
          scratch);
    };
    multiply(args.gate, copy_to);
    multiply(args.up, activate);
  };
  const auto of_shared = [&](RowRange range, std::int64_t first, std::int64_t rows, float* scratch) {
    const auto multiply = [&](const ConstTensor& weight, auto&& take) {
      const bool rounded = uses_q8(args.precision, weight.dtype);
      multiply_rows(
          WeightMatrix::of(weight), range, rounded, rows, [&](std::int64_t t) { return memory.x(rounded, first + t); },
          [&](std::int64_t t, std::int64_t n, std::int64_t count, const float* sums) {
            take(sums, count, steps.shared_activated_row(first + t) + n);
          },
          scratch);
    };
    multiply(args.shared_gate, copy_to);
    multiply(args.shared_up, activate);
  };
  for_each_ffn_task(steps, args.gate, steps.shared_inner, q8, stream, of_expert, of_shared);
}

// products[pair,:] = down activated, and the same of the shared expert.
void run_downs(const MoeFfnArgs& args, const FfnMemory& memory, const Stream& stream) {
  const FfnSteps& steps = memory.steps;
  const bool q8 = uses_q8(args.precision, args.down.dtype);
  const auto of_expert = [&](std::int64_t expert, RowRange range, float* scratch) {
    multiply_expert(
        args.down, expert, range, q8, steps.lists,
        [&](std::int64_t pair) { return memory.activated_rows.row(pair, 0); },
        [&](std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
          copy_sums(sums, count, steps.product_row(pair) + n);
        },
        scratch);
  };
  const auto of_shared = [&](RowRange range, std::int64_t first, std::int64_t rows, float* scratch) {
    multiply_rows(
        WeightMatrix::of(args.shared_down), range, uses_q8(args.precision, args.shared_down.dtype), rows,
        [&](std::int64_t t) { return memory.shared_rows.row(first + t, 0); },
        [&](std::int64_t t, std::int64_t n, std::int64_t count, const float* sums) {
          copy_sums(sums, count, steps.shared_product_row(first + t) + n);
        },
        scratch);
  };
  for_each_ffn_task(steps, args.down, steps.shared_inner > 0 ? steps.hidden : 0, q8, stream, of_expert, of_shared);
}

void run_ffn(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  FfnMemory memory(args, stream, Arena(workspace));
  memory.steps.x.prepare(stream);
  if (memory.q8) memory.rounded.prepare(stream);
  memory.steps.route(args, stream);
  run_gates(args, memory, stream);
  memory.activated_rows.prepare(stream);
  if (args.shared_gate.defined()) memory.shared_rows.prepare(stream);
  run_downs(args, memory, stream);
  memory.steps.combine(args, stream);
}

bool any_q8(const MoeFfnArgs& args) { return any_q8_input(args) || uses_q8(args.precision, args.down.dtype); }

MoeFfnArgs with_exact_products(MoeFfnArgs args) {
  args.precision = MatmulPrecision::kExact;
  return args;
}

constexpr Kernel<MoeFfnArgs> kFfn[] = {
    {.name = "grouped_q8",
     .supports = [](const MoeFfnArgs& args, const Stream&) -> std::string {
       return any_q8(args) ? "" : "no weights in a block format";
     },
     .workspace = ffn_workspace,
     .run = run_ffn,
     .remark = [](const MoeFfnArgs&) { return "router from f32 activations; weights: " + q8_remark(); },
     .arithmetic = Arithmetic::k8Bit,
     .cost = ffn_cost},
    {.name = "amx",
     .supports = tile_ffn_reason,
     .workspace = tile_ffn_workspace,
     .run = run_tile_ffn,
     .remark = [](const MoeFfnArgs&) { return "router from f32 activations; " + tile_remark(); },
     .arithmetic = Arithmetic::k16Bit,
     .cost = tile_ffn_cost},
    {.name = "grouped",
     .supports = always_supported<MoeFfnArgs>,
     .workspace = [](const MoeFfnArgs& args,
                     const Stream& stream) { return ffn_workspace(with_exact_products(args), stream); },
     .run = [](const MoeFfnArgs& args, Workspace workspace,
               const Stream& stream) { run_ffn(with_exact_products(args), workspace, stream); },
     .remark = [](const MoeFfnArgs& args) { return exact_remark(args.precision, args.gate.dtype); },
     .cost = [](const MoeFfnArgs& args, const Stream& stream) { return ffn_cost(with_exact_products(args), stream); }}};

}  // namespace

double ffn_cost(const MoeFfnArgs& args, const Stream& stream) {
  const std::int64_t tokens = args.x.dim(0);
  const double experts = tuning::expected_experts(args.router.dim(0), tokens, args.top_k);
  const auto pairs = static_cast<double>(tokens * args.top_k);
  const auto matrix = static_cast<double>(args.gate.dim(1) * args.gate.dim(2));
  const int threads = thread_count(stream);
  const auto cost = [&](const ConstTensor& weight, double passes, double rows, double weights) {
    return tuning::product_us(tuning::product_cost(uses_q8(args.precision, weight.dtype)), passes, rows, weights,
                              threads);
  };
  double us = 2.0 * cost(args.gate, experts, pairs, matrix) + cost(args.down, experts, pairs, matrix);
  if (!args.shared_gate.defined()) return us;
  const auto shared = static_cast<double>(args.shared_gate.size());
  const auto rows = static_cast<double>(tokens);
  for (const ConstTensor* weight : {&args.shared_gate, &args.shared_up, &args.shared_down}) {
    us += cost(*weight, std::ceil(rows / kRowsPerPass), rows, shared);
  }
  return us;
}

KernelList<MoeFfnArgs> moe_ffn_kernels() { return kFfn; }

}  // namespace thalweg::cpu
