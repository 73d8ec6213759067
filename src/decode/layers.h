#pragma once

// The blocks of a layer and what a forward pass shares between them.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>

#include "checkpoint/config.h"
#include "checkpoint/weights.h"
#include "core/arena.h"
#include "decode/batch.h"
#include "decode/rank_group.h"
#include "decode/runtime.h"
#include "decode/sequence_share.h"
#include "decode/state.h"
#include "thalweg/moe.h"
#include "thalweg/nn.h"

namespace thalweg::decode {

using checkpoint::AttentionWeights;
using checkpoint::DenseWeights;
using checkpoint::GatedDeltaWeights;
using checkpoint::MoeWeights;

// One forward pass over T packed tokens of N sequences, and its memory.
struct Step {
  Step(const Runtime& runtime_, Batch& batch_)
      : runtime(runtime_), batch(&batch_), workspace(runtime_), scratch(runtime_), activations(runtime_) {}

  const Runtime& runtime;
  const Batch* batch;
  ConstTensor rope_frequencies;  // Weights::rope_frequencies
  bool decode = false;           // every sequence has one token, or drafts are run, with the same kernels
  bool drafts = false;           // tokens after a sequence's first are drafts; pending tokens are replayed
  // Not by the number of rows: a sequence's bits do not depend on its neighbors.
  RowHint row_hint = RowHint::kFew;
  RowHint head_hint = RowHint::kFew;  // of the logits: few rows, unless every token's are wanted
  bool norms_sum = false;             // nothing but the norm behind it reads a block's output: there ranks may sum it
  Tensor unsummed;                    // which the next norm sums
  RankGroup* group = nullptr;         // whose ranks hold the other heads, experts and rows; null: this one has all
  const SequenceShare* share = nullptr;  // of a prompt that ranks share; null: this rank runs all
  bool planning = false;                 // nothing runs: the step's memory is counted
  // If given, each operation is timed by itself.
  std::function<void(const std::string& operation, const std::string& kernel, double seconds)> on_time;
  StepMemory workspace;    // of an operation, where there is no room behind the scratch
  StepMemory scratch;      // of the block that runs, and behind it the workspace of its operation
  StepMemory activations;  // of the whole step

  void set_decode(bool one_token_each) {
    decode = one_token_each;
    drafts = false;
    norms_sum = false;
    row_hint = decode ? RowHint::kFew : RowHint::kMany;
    head_hint = RowHint::kFew;
  }
  std::int64_t count() const { return batch->count(); }
  // Changes when memory moves.
  int generation() const { return workspace.allocations() + scratch.allocations() + activations.allocations(); }

  template <class Args>
  void run(const Args& args) {
    const Stream stream = runtime.hinted(runtime.stream(), row_hint);
    const std::size_t bytes = workspace_size(args, stream);
    Workspace memory = scratch.reserve_behind(bytes);
    if (planning) return;
    if (memory.data == nullptr) memory = workspace.reserve(bytes);
    if (on_time) {
      const Explanation chosen = explain(args, stream);
      on_time(chosen.operation, chosen.kernels[static_cast<std::size_t>(chosen.chosen)].kernel,
              runtime.time([&](const Stream& timed) { thalweg::run(args, memory, runtime.hinted(timed, row_hint)); }));
    } else {
      thalweg::run(args, memory, stream);
    }
  }

  // y [T,N] = x [T,K] times weight [N,K].
  void multiply(const ConstTensor& x, const ConstTensor& weight, const Tensor& y) {
    LinearArgs args;
    args.x = x;
    args.weight = weight;
    args.y = y;
    args.precision = runtime.precision();
    run(args);
  }

  // y_i [T,N_i] = x [T,K] times weight_i [N_i,K], of those, at most four, whose weight is there.
  struct Product {
    ConstTensor weight;
    Tensor y;
  };
  void multiply(const ConstTensor& x, std::initializer_list<Product> products) {
    ProjectionsArgs args;
    args.x = x;
    args.precision = runtime.precision();
    ConstTensor* const weights[] = {&args.weight_0, &args.weight_1, &args.weight_2, &args.weight_3};
    Tensor* const results[] = {&args.y_0, &args.y_1, &args.y_2, &args.y_3};
    std::size_t count = 0;
    for (const Product& product : products) {
      if (!product.weight.defined()) continue;
      *weights[count] = product.weight;
      *results[count++] = product.y;
    }
    if (count == 1) return multiply(x, args.weight_0, args.y_0);
    run(args);
  }

  // Whether other ranks run it too. They do not where operations are timed, which rank 0 does alone.
  bool exchanges() const { return group != nullptr && !planning && !on_time; }
  // A block's output, to which each rank contributes its own heads or experts.
  void sum_over_ranks(const Tensor& y) {
    if (!exchanges()) return;
    if (norms_sum) {
      unsummed = y;
    } else {
      group->all_reduce(y);
    }
  }
  // The norm of a residual stream and a block's output.
  void norm(const RmsNormArgs& args) {
    if (unsummed.defined()) {
      const Tensor y = std::exchange(unsummed, Tensor());
      if (group->sum_and_norm(args)) return;
      group->all_reduce(y);
    }
    run(args);
  }

  // A matrix without memory, for planning.
  Tensor tensor(DType dtype, std::int64_t rows, std::int64_t columns) const {
    return {nullptr, dtype, {rows, columns}, runtime.device()};
  }
  // A matrix [rows,columns] from the arena.
  Tensor take(Arena& arena, DType dtype, std::int64_t rows, std::int64_t columns) const {
    return {arena.take<std::byte>(bytes_of(dtype, rows * columns)), dtype, {rows, columns}, runtime.device()};
  }
  Tensor take_f32(Arena& arena, std::int64_t rows, std::int64_t columns) const {
    return take(arena, DType::kF32, rows, columns);
  }
  // In the activations' type.
  Tensor take(Arena& arena, std::int64_t rows, std::int64_t columns) const {
    return take(arena, runtime.activations(), rows, columns);
  }
};

// A round of at most so many drafts of each sequence, and replays, has no more tokens of one than the fast kernels of
// the fused step take.
constexpr std::int64_t kFewDrafts = 3;
inline bool few_drafts(const Batch& batch) { return batch.most_drafts() <= kFewDrafts; }

// The tensors that `layout(arena)` takes, over `memory`: called once to count the bytes and once to hand them out. They
// are valid until the next call for the same memory.
template <class Layout>
auto lay_out(StepMemory& memory, const Layout& layout) {
  Arena counted;
  layout(counted);
  Arena arena(memory.reserve(counted.used()));
  return layout(arena);
}

// The blocks between two norms: x [T,D] to y [T,D], in the activations' type.
void gated_delta_layer(const ModelConfig& config, const GatedDeltaWeights& weights, std::size_t layer, StatePool& pool,
                       Step& step, const ConstTensor& x, const Tensor& y);
// Replays the pending tokens of the batch's sequences, which have none of their own.
void settle_gated_delta(const ModelConfig& config, const GatedDeltaWeights& weights, std::size_t layer, StatePool& pool,
                        Step& step);
void attention_layer(const ModelConfig& config, const AttentionWeights& weights, std::size_t layer, StatePool& pool,
                     Step& step, const ConstTensor& x, const Tensor& y);
// Of it only what later tokens need: keys and values.
void store_keys_and_values(const ModelConfig& config, const AttentionWeights& weights, std::size_t layer,
                           StatePool& pool, Step& step, const ConstTensor& x);
// The feed-forward block of a layer: y, which holds the mixer's output, joins h, and becomes the block's. x is scratch.
void ffn_layer(const ModelConfig& config, const checkpoint::LayerWeights& weights, bool sparse, Step& step,
               const Tensor& h, const Tensor& y, const Tensor& x);
void dense_ffn(const ModelConfig& config, const DenseWeights& weights, Step& step, const ConstTensor& x,
               const Tensor& y);
// The arguments of the expert block's operation, without x and y.
MoeFfnArgs expert_args(const ModelConfig& config, const MoeWeights& weights, MatmulPrecision precision);
void expert_ffn(const ModelConfig& config, const MoeWeights& weights, Step& step, const ConstTensor& x,
                const Tensor& y);

}  // namespace thalweg::decode
