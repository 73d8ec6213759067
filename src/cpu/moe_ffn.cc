#include <cmath>

#include "cpu/expert_matmul.h"
#include "cpu/moe.h"
#include "cpu/routing.h"
#include "cpu/scratch.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

bool any_q8_input(const MoeFfnArgs& args) {
  return uses_q8(args.precision, args.gate.dtype) ||
         (args.shared_gate.defined() &&
          (uses_q8(args.precision, args.shared_gate.dtype) || uses_q8(args.precision, args.shared_up.dtype)));
}

// Activations as f32 and, where some weights want them, in 8 bits.
struct Inputs {
  Activations exact;
  Activations rounded;
  bool q8;

  template <class... Source>
  Inputs(bool q8_, Arena& arena, const Source&... source)
      : exact(source..., false, arena), rounded(source..., q8_, arena), q8(q8_) {}

  void prepare(const Stream& stream) const {
    exact.prepare(stream);
    if (q8) rounded.prepare(stream);
  }
  const float* row(bool of_q8, std::int64_t i) const { return of_q8 ? rounded.row(i, 0) : exact.row(i, 0); }
};

struct Plan {
  std::int64_t tokens, slots, hidden, inner, shared_inner;
  Inputs x;
  float* logits;  // [T,E]
  std::int32_t* ids;
  float* weights;  // [T,S]
  ExpertRows lists;
  float* activated;  // [T*S,I]
  Activations activated_rows;
  float* products;          // [T*S,D]
  float* shared_activated;  // [T,J]
  Activations shared_rows;
  float* shared_products;  // [T,D]
  float* scratch;
  float* rows;  // per worker: two of D and two of E
  std::size_t bytes;

  Plan(const MoeFfnArgs& args, const Stream& stream, Arena arena)
      : tokens(args.x.dim(0)),
        slots(args.top_k),
        hidden(args.x.dim(1)),
        inner(args.gate.dim(1)),
        shared_inner(args.shared_gate.defined() ? args.shared_gate.dim(0) : 0),
        x(any_q8_input(args), arena, args.x),
        logits(arena.take<float>(tokens * args.router.dim(0))),
        ids(arena.take<std::int32_t>(tokens * slots)),
        weights(arena.take<float>(tokens * slots)),
        lists(args.router.dim(0), tokens * slots, arena),
        activated(arena.take<float>(tokens * slots * inner)),
        activated_rows(activated, tokens * slots, inner, uses_q8(args.precision, args.down.dtype), arena),
        products(arena.take<float>(tokens * slots * hidden)),
        shared_activated(arena.take<float>(tokens * shared_inner)),
        shared_rows(shared_activated, tokens, shared_inner, uses_q8(args.precision, args.shared_down.dtype), arena),
        shared_products(arena.take<float>(shared_inner > 0 ? tokens * hidden : 0)),
        scratch(arena.take<float>(product_floats() * thread_count(stream))),
        rows(arena.take<float>(row_floats(args) * thread_count(stream))),
        bytes(arena.used()) {}

  static std::int64_t row_floats(const MoeFfnArgs& args) {
    return std::max(arena_floats(args.x.dim(1), args.x.dim(1)), arena_floats(args.router.dim(0)));
  }
};

std::size_t ffn_workspace(const MoeFfnArgs& args, const Stream& stream) { return Plan(args, stream, Arena()).bytes; }

void route(const MoeFfnArgs& args, Plan& plan, const Stream& stream) {
  const std::int64_t experts = args.router.dim(0);
  // Always from f32 activations: a rounding here could choose another expert.
  multiply_matrix(
      stream, WeightMatrix::of(args.router), false, plan.tokens, [&](std::int64_t t) { return plan.x.row(false, t); },
      [&](std::int64_t t, std::int64_t n, std::int64_t count, const float* sums) {
        copy_sums(sums, count, plan.logits + t * experts + n);
      },
      plan.scratch);
  parallel_for(stream, plan.tokens, static_cast<double>(experts) * tuning::kSelectNs, [&](std::int64_t t, int worker) {
    route_row(plan.logits + t * experts, experts, plan.slots, args.renormalize, plan.ids + t * plan.slots,
              plan.weights + t * plan.slots, plan.rows + worker * Plan::row_floats(args));
  });
  plan.lists.build([&](std::int64_t pair) { return plan.ids[pair]; });
}

// activated[pair,:] = silu(gate x) * (up x), then products[pair,:] = down activated.
void run_experts(const MoeFfnArgs& args, const Plan& plan, const Stream& stream) {
  const bool q8 = uses_q8(args.precision, args.gate.dtype);
  const auto input = [&](std::int64_t pair) { return plan.x.row(q8, pair / plan.slots); };
  const auto activated = [&](std::int64_t pair, std::int64_t n) { return plan.activated + pair * plan.inner + n; };
  for_each_expert_task(stream, plan.lists, args.gate, q8, plan.scratch,
                       [&](std::int64_t expert, RowRange range, float* scratch) {
                         multiply_expert(
                             args.gate, expert, range, q8, plan.lists, input,
                             [&](std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
                               copy_sums(sums, count, activated(pair, n));
                             },
                             scratch);
                         multiply_expert(
                             args.up, expert, range, q8, plan.lists, input,
                             [&](std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
                               vector_ops().silu_multiply(activated(pair, n), sums, count, activated(pair, n));
                             },
                             scratch);
                       });
  plan.activated_rows.prepare(stream);
  const bool down_q8 = uses_q8(args.precision, args.down.dtype);
  for_each_expert_task(stream, plan.lists, args.down, down_q8, plan.scratch,
                       [&](std::int64_t expert, RowRange range, float* scratch) {
                         multiply_expert(
                             args.down, expert, range, down_q8, plan.lists,
                             [&](std::int64_t pair) { return plan.activated_rows.row(pair, 0); },
                             [&](std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
                               copy_sums(sums, count, plan.products + pair * plan.hidden + n);
                             },
                             scratch);
                       });
}

void run_shared(const MoeFfnArgs& args, const Plan& plan, const Stream& stream) {
  const auto activated = [&](std::int64_t t, std::int64_t n) {
    return plan.shared_activated + t * plan.shared_inner + n;
  };
  const bool gate_q8 = uses_q8(args.precision, args.shared_gate.dtype);
  multiply_matrix(
      stream, WeightMatrix::of(args.shared_gate), gate_q8, plan.tokens,
      [&](std::int64_t t) { return plan.x.row(gate_q8, t); },
      [&](std::int64_t t, std::int64_t n, std::int64_t count, const float* sums) {
        copy_sums(sums, count, activated(t, n));
      },
      plan.scratch);
  const bool up_q8 = uses_q8(args.precision, args.shared_up.dtype);
  multiply_matrix(
      stream, WeightMatrix::of(args.shared_up), up_q8, plan.tokens,
      [&](std::int64_t t) { return plan.x.row(up_q8, t); },
      [&](std::int64_t t, std::int64_t n, std::int64_t count, const float* sums) {
        vector_ops().silu_multiply(activated(t, n), sums, count, activated(t, n));
      },
      plan.scratch);
  plan.shared_rows.prepare(stream);
  multiply_matrix(
      stream, WeightMatrix::of(args.shared_down), uses_q8(args.precision, args.shared_down.dtype), plan.tokens,
      [&](std::int64_t t) { return plan.shared_rows.row(t, 0); },
      [&](std::int64_t t, std::int64_t n, std::int64_t count, const float* sums) {
        copy_sums(sums, count, plan.shared_products + t * plan.hidden + n);
      },
      plan.scratch);
}

// y[t,:] = sum_s weight_s products[t,s,:] + sigmoid(x . shared_router) shared_products[t,:], slots in order.
void combine(const MoeFfnArgs& args, const Plan& plan, const Stream& stream) {
  const VectorOps& vec = vector_ops();
  const double task_ns = static_cast<double>((plan.slots + 2) * plan.hidden) * tuning::kElementNs;
  parallel_for(stream, plan.tokens, task_ns, [&](std::int64_t t, int worker) {
    float* sum = plan.rows + worker * Plan::row_floats(args);
    float* row = sum + arena_floats(plan.hidden);
    std::fill_n(sum, plan.hidden, 0.0F);
    for (std::int64_t pair = t * plan.slots; pair < (t + 1) * plan.slots; ++pair) {
      vec.axpy(plan.weights[pair], plan.products + pair * plan.hidden, plan.hidden, sum);
    }
    if (args.shared_gate.defined()) {
      vec.load(args.shared_router.dtype, args.shared_router.data, plan.hidden, row);
      const float logit = vec.dot(plan.x.row(false, t), row, plan.hidden);
      vec.axpy(1.0F / (1.0F + std::exp(-logit)), plan.shared_products + t * plan.hidden, plan.hidden, sum);
    }
    vec.store(args.y.dtype, sum, plan.hidden, args.y.row(t));
  });
}

void run_ffn(const MoeFfnArgs& args, Workspace workspace, const Stream& stream) {
  Plan plan(args, stream, Arena(workspace));
  plan.x.prepare(stream);
  route(args, plan, stream);
  run_experts(args, plan, stream);
  if (args.shared_gate.defined()) run_shared(args, plan, stream);
  combine(args, plan, stream);
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
     .arithmetic = Arithmetic::k8Bit},
    {.name = "grouped",
     .supports = always_supported<MoeFfnArgs>,
     .workspace = [](const MoeFfnArgs& args,
                     const Stream& stream) { return ffn_workspace(with_exact_products(args), stream); },
     .run = [](const MoeFfnArgs& args, Workspace workspace,
               const Stream& stream) { run_ffn(with_exact_products(args), workspace, stream); },
     .remark = [](const MoeFfnArgs& args) { return exact_remark(args.precision, args.gate.dtype); }}};

}  // namespace

KernelList<MoeFfnArgs> moe_ffn_kernels() { return kFfn; }

}  // namespace thalweg::cpu
