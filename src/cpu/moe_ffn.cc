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

// activated[pair,:] = silu(gate x) * (up x), then products[pair,:] = down activated.
void run_experts(const MoeFfnArgs& args, const FfnMemory& memory, const Stream& stream) {
  const FfnSteps& steps = memory.steps;
  const bool q8 = uses_q8(args.precision, args.gate.dtype);
  const auto input = [&](std::int64_t pair) { return memory.x(q8, pair / steps.slots); };
  for_each_expert_task(stream, steps.lists, args.gate, q8, steps.scratch,
                       [&](std::int64_t expert, RowRange range, float* scratch) {
                         multiply_expert(
                             args.gate, expert, range, q8, steps.lists, input,
                             [&](std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
                               copy_sums(sums, count, steps.activated_row(pair) + n);
                             },
                             scratch);
                         multiply_expert(
                             args.up, expert, range, q8, steps.lists, input,
                             [&](std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
                               float* gate = steps.activated_row(pair) + n;
                               vector_ops().silu_multiply(gate, sums, count, gate);
                             },
                             scratch);
                       });
  memory.activated_rows.prepare(stream);
  const bool down_q8 = uses_q8(args.precision, args.down.dtype);
  for_each_expert_task(stream, steps.lists, args.down, down_q8, steps.scratch,
                       [&](std::int64_t expert, RowRange range, float* scratch) {
                         multiply_expert(
                             args.down, expert, range, down_q8, steps.lists,
                             [&](std::int64_t pair) { return memory.activated_rows.row(pair, 0); },
                             [&](std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
                               copy_sums(sums, count, steps.product_row(pair) + n);
                             },
                             scratch);
                       });
}

void run_shared(const MoeFfnArgs& args, const FfnMemory& memory, const Stream& stream) {
  const FfnSteps& steps = memory.steps;
  const bool gate_q8 = uses_q8(args.precision, args.shared_gate.dtype);
  multiply_matrix(
      stream, WeightMatrix::of(args.shared_gate), gate_q8, steps.tokens,
      [&](std::int64_t t) { return memory.x(gate_q8, t); },
      [&](std::int64_t t, std::int64_t n, std::int64_t count, const float* sums) {
        copy_sums(sums, count, steps.shared_activated_row(t) + n);
      },
      steps.scratch);
  const bool up_q8 = uses_q8(args.precision, args.shared_up.dtype);
  multiply_matrix(
      stream, WeightMatrix::of(args.shared_up), up_q8, steps.tokens, [&](std::int64_t t) { return memory.x(up_q8, t); },
      [&](std::int64_t t, std::int64_t n, std::int64_t count, const float* sums) {
        float* gate = steps.shared_activated_row(t) + n;
        vector_ops().silu_multiply(gate, sums, count, gate);
      },
      steps.scratch);
  memory.shared_rows.prepare(stream);
  multiply_matrix(
      stream, WeightMatrix::of(args.shared_down), uses_q8(args.precision, args.shared_down.dtype), steps.tokens,
      [&](std::int64_t t) { return memory.shared_rows.row(t, 0); },
      [&](std::int64_t t, std::int64_t n, std::int64_t count, const float* sums) {
        copy_sums(sums, count, steps.shared_product_row(t) + n);
      },
      steps.scratch);
}

void run_ffn(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  FfnMemory memory(args, stream, Arena(workspace));
  memory.steps.x.prepare(stream);
  if (memory.q8) memory.rounded.prepare(stream);
  memory.steps.route(args, stream);
  run_experts(args, memory, stream);
  if (args.shared_gate.defined()) run_shared(args, memory, stream);
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
