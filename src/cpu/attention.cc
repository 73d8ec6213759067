// Attention with an online softmax. The rows of a task are a few tokens of one sequence times the query heads that
// share a key head; it visits the keys in blocks of 64, so that each row of the cache is read once for all rows of the
// task. Keys are grouped in spans of 128 with a softmax each, which are merged in order: by the task itself, or, for
// few tokens and a long cache (decode), in a second pass over partial results of one task per span. A row's arithmetic
// depends only on its own sequence, neither on the rest of the batch nor on the size of the cache.

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/threads.h"
#include "cpu/attention.h"
#include "cpu/nn.h"
#include "cpu/scratch.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

constexpr std::int64_t kRows = 64;
constexpr std::int64_t kKeys = 64;
constexpr std::int64_t kFewTasks = 64;  // below, tokens and key heads alone do not occupy a large machine
constexpr std::int64_t kSpan = 128;
constexpr std::int64_t kMaxPartials = 2048;  // (token, span) pairs: each takes memory for all heads of a token
static_assert(kSpan % kKeys == 0);

struct Plan {
  explicit Plan(const AttentionArgs& args)
      : heads(args.q.dim(1)),
        width(args.q.dim(2)),
        padded(round_up(width, 16)),
        key_heads(args.k_cache.dim(2)),
        group(std::max<std::int64_t>(1, heads / key_heads)),
        tokens(std::clamp<std::int64_t>(kRows / group, 1, std::max<std::int64_t>(1, args.q.dim(0)))),
        rows(tokens * group) {
    const std::int64_t capacity = CachePlaces(args.slots, args.pages, args.k_cache).capacity();
    spans = std::max<std::int64_t>(1, (capacity + kSpan - 1) / kSpan);
    const std::int64_t all = args.q.dim(0);
    if (spans > 1 && all * key_heads <= kFewTasks && all * spans <= kMaxPartials) partials = all * heads * spans;
  }

  std::int64_t shared_floats() const { return arena_floats(2 * partials, partials * padded); }
  std::int64_t worker_floats() const {
    return arena_floats(rows * width, kKeys * padded, rows * kKeys, rows * padded, rows, rows,
                        spans > 1 ? rows * padded : 0, rows, rows, padded);
  }

  std::int64_t heads, width, padded;  // query heads, head size, head size in whole vectors
  std::int64_t key_heads, group;      // query heads that share a key head
  std::int64_t tokens, rows;          // of a task, at most
  std::int64_t spans = 1;             // of the whole cache
  std::int64_t partials = 0;          // (token, head, span) triples; 0: tasks write the output themselves
};

// Partial results per span, [T,HQ,spans]: maximum and sum of a row's softmax, and its sum of weighted values.
struct Partials {
  Partials(const Plan& plan, const Workspace& workspace) {
    Arena scratch(workspace);
    statistics = scratch.take<float>(2 * plan.partials);
    values = scratch.take<float>(plan.partials * plan.padded);
  }
  float* statistics;
  float* values;
};

struct Task {
  Task(const Plan& plan, const Workspace& workspace, int worker) {
    Arena scratch = worker_arena(workspace, plan.worker_floats(), worker);
    q = scratch.take<float>(plan.rows * plan.width);
    cached = scratch.take<float>(kKeys * plan.padded);
    scores = scratch.take<float>(plan.rows * kKeys);
    sums = scratch.take<float>(plan.rows * plan.padded);
    maxima = scratch.take<float>(plan.rows);
    totals = scratch.take<float>(plan.rows);
    merged = scratch.take<float>(plan.spans > 1 ? plan.rows * plan.padded : 0);
    merged_maxima = scratch.take<float>(plan.rows);
    merged_totals = scratch.take<float>(plan.rows);
    gate = scratch.take<float>(plan.padded);
  }
  float* q;       // [rows,D]
  float* cached;  // [kKeys,padded]: keys, then values
  float* scores;  // [rows,kKeys]
  float* sums;    // [rows,padded]: weighted values of the span so far
  float* maxima;  // [rows]
  float* totals;  // [rows]: sum of the weights so far
  float* merged;  // sums, maxima and totals of all spans so far
  float* merged_maxima;
  float* merged_totals;
  float* gate;  // [padded]
};

// Rows of a cache as f32.
struct CachedRows {
  const float* rows;
  std::int64_t stride;
};
CachedRows load_rows(const CacheBlock& block, std::int64_t padded, float* to) {
  const ConstTensor& cache = block.cache;
  if (cache.dtype == DType::kF32 && cache.dim(3) == padded &&
      block.places.together(block.first, block.first + block.count - 1)) {
    return {static_cast<const float*>(block.row(0)), cache.stride(1)};
  }
  for (std::int64_t i = 0; i < block.count; ++i) {
    vector_ops().load(cache.dtype, block.row(i), cache.dim(3), to + i * padded);
  }
  return {to, padded};
}

void attend(const AttentionArgs& args, const Plan& plan, const Task& task, const Keys& keys, std::int64_t length,
            float scale) {
  const VectorOps& vec = vector_ops();
  const std::int64_t group = plan.group;
  std::fill_n(task.sums, length * group * plan.padded, 0.0F);
  std::fill_n(task.totals, length * group, 0.0F);
  std::fill_n(task.maxima, length * group, -std::numeric_limits<float>::infinity());
  for (std::int64_t first = keys.begin; first < keys.end; first += kKeys) {
    const std::int64_t count = std::min(kKeys, keys.end - first);
    const auto seen = [&](std::int64_t token) { return std::min(count, keys.visible + token - first); };
    // Tokens before `some` attend to no key of the block, tokens from `all` on to all of them.
    const std::int64_t some = std::max<std::int64_t>(0, first + 1 - keys.visible);
    const std::int64_t all = std::clamp(first + count - keys.visible, some, length);
    const CacheBlock values{args.v_cache, keys.places, keys.sequence, keys.head, first, count};
    prefetch(values);
    const CachedRows k =
        load_rows({args.k_cache, keys.places, keys.sequence, keys.head, first, count}, plan.padded, task.cached);
    vec.gemm_rows((length - some) * group, count, plan.width, task.q + some * group * plan.width, plan.width, k.rows,
                  k.stride, task.scores + some * group * kKeys, kKeys);
    for (std::int64_t row = some * group; row < length * group; ++row) {
      const float shrink = nn_vector_ops().online_softmax(scale, task.scores + row * kKeys, seen(row / group),
                                                          task.maxima + row, task.totals + row);
      float* sums = task.sums + row * plan.padded;
      if (shrink != 1.0F) vec.scale(shrink, sums, plan.padded, sums);
    }
    const std::int64_t next = first + count;
    prefetch({args.k_cache, keys.places, keys.sequence, keys.head, next, std::min(kKeys, keys.end - next)});
    const CachedRows v = load_rows(values, plan.padded, task.cached);
    const auto add_values = [&](std::int64_t token, std::int64_t tokens, std::int64_t depth) {
      vec.gemm(tokens * group, plan.padded, depth, task.scores + token * group * kKeys, kKeys, 1, v.rows, v.stride,
               task.sums + token * group * plan.padded, plan.padded, true);
    };
    // A masked value must not enter the sum even with weight 0: it may be NaN.
    for (std::int64_t token = some; token < all; ++token) add_values(token, 1, seen(token));
    if (all < length) add_values(all, length - all, count);
  }
}

// A row's softmax so far.
struct Softmax {
  float& maximum;
  float& total;
  float* sums;  // [width]
};

// Merges the next span: its maximum, the sum of its weights and its weighted values.
void merge(const Softmax& row, float maximum, float total, const float* sums, std::int64_t width) {
  if (total == 0.0F) return;  // all keys of the span are masked
  if (row.total == 0.0F) {
    row.maximum = maximum;
    row.total = total;
    std::copy_n(sums, width, row.sums);
    return;
  }
  const float top = std::max(row.maximum, maximum);
  const float before = std::exp(row.maximum - top);
  const float now = std::exp(maximum - top);
  row.maximum = top;
  row.total = before * row.total + now * total;
  vector_ops().scale(before, row.sums, width, row.sums);
  vector_ops().axpy(now, sums, width, row.sums);
}

void merge_partials(const AttentionArgs& args, const Plan& plan, const Partials& partials, std::int64_t row,
                    const Task& task) {
  const float* statistics = partials.statistics + 2 * row * plan.spans;
  float maximum = 0.0F;
  float total = 0.0F;
  for (std::int64_t s = 0; s < plan.spans; ++s) {
    merge({maximum, total, task.sums}, statistics[2 * s], statistics[2 * s + 1],
          partials.values + (row * plan.spans + s) * plan.padded, plan.width);
  }
  finish_row(args, row / plan.heads, row % plan.heads, total, task.sums, task.gate);
}

// All spans of a task's keys in order. task.totals and task.sums hold the result.
void attend_spans(const AttentionArgs& args, const Plan& plan, const Task& task, const Keys& keys, std::int64_t length,
                  float scale) {
  if (keys.end <= kSpan) return attend(args, plan, task, keys, length, scale);
  const std::int64_t rows = length * plan.group;
  std::fill_n(task.merged_totals, rows, 0.0F);
  for (std::int64_t begin = 0; begin < keys.end; begin += kSpan) {
    Keys span = keys;
    span.begin = begin;
    span.end = std::min(begin + kSpan, keys.end);
    attend(args, plan, task, span, length, scale);
    for (std::int64_t row = 0; row < rows; ++row) {
      merge({task.merged_maxima[row], task.merged_totals[row], task.merged + row * plan.padded}, task.maxima[row],
            task.totals[row], task.sums + row * plan.padded, plan.width);
    }
  }
  std::copy_n(task.merged_totals, rows, task.totals);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(task.merged + row * plan.padded, plan.width, task.sums + row * plan.padded);
  }
}

std::size_t attention_workspace(const AttentionArgs& args, const Stream& stream) {
  const Plan plan(args);
  return static_cast<std::size_t>(plan.shared_floats()) * sizeof(float) + worker_bytes(plan.worker_floats(), stream);
}

void run_attention(const AttentionArgs& args, Workspace workspace, const Stream& stream) {
  if (args.q.size() == 0) return;
  const Plan plan(args);
  const Partials partials(plan, workspace);
  const Workspace workers{static_cast<float*>(workspace.data) + plan.shared_floats(), 0};
  const Sequences sequences(args.cu_seqlens, 1, args.q.dim(0));
  const CachePlaces places(args.slots, args.pages, args.k_cache);
  const float scale = score_scale(args);
  const auto* lengths = static_cast<const std::int32_t*>(args.lengths.data);
  const std::int64_t spans = plan.partials > 0 ? plan.spans : 1;  // tasks of a chunk and key head
  const std::int64_t per_chunk = plan.key_heads * spans;

  parallel_for(stream, sequences.total_chunks(plan.tokens) * per_chunk, [&](std::int64_t number, int worker) {
    const Task task(plan, workers, worker);
    const Chunk chunk = sequences.chunk(number / per_chunk, plan.tokens);
    const std::int64_t head = number % per_chunk / spans;
    const std::int64_t span = number % spans;
    const std::int64_t n = chunk.sequence;
    const bool absent = places.absent(n);
    const std::int64_t visible = lengths[n] - sequences.length(n) + (chunk.begin - sequences.begin(n)) + 1;
    const std::int64_t rows = chunk.length * plan.group;
    Keys keys{places, n, head, 0, absent ? 0 : visible + chunk.length - 1, visible};
    if (spans > 1) {
      keys.begin = std::min(span * kSpan, keys.end);
      keys.end = std::min(keys.begin + kSpan, keys.end);
    }
    const auto token_of = [&](std::int64_t row) { return chunk.begin + row / plan.group; };
    const auto head_of = [&](std::int64_t row) { return head * plan.group + row % plan.group; };
    for (std::int64_t row = 0; row < rows && keys.begin < keys.end; ++row) {
      vector_ops().load(args.q.dtype, args.q.row(token_of(row), head_of(row)), plan.width, task.q + row * plan.width);
    }
    if (spans == 1) {
      attend_spans(args, plan, task, keys, chunk.length, scale);
      for (std::int64_t row = 0; row < rows; ++row) {
        finish_row(args, token_of(row), head_of(row), task.totals[row], task.sums + row * plan.padded, task.gate);
      }
      return;
    }
    attend(args, plan, task, keys, chunk.length, scale);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t index = (token_of(row) * plan.heads + head_of(row)) * plan.spans + span;
      partials.statistics[2 * index] = task.maxima[row];
      partials.statistics[2 * index + 1] = task.totals[row];
      if (keys.begin < keys.end) {
        std::copy_n(task.sums + row * plan.padded, plan.width, partials.values + index * plan.padded);
      }
    }
  });
  if (spans == 1) return;
  parallel_for(stream, args.q.dim(0) * plan.heads, [&](std::int64_t row, int worker) {
    merge_partials(args, plan, partials, row, Task(plan, workers, worker));
  });
}

// bf16 for prompts: of drafts and of single tokens, which have this kernel, the bits are the same.
double tokens_of(const AttentionArgs& args, const Stream& stream) {
  if (stream.rows == RowHint::kByCount) return static_cast<double>(args.q.dim(0));
  return stream.rows == RowHint::kFew ? 1.0 : static_cast<double>(tuning::kManyRows);
}
double cost(const AttentionArgs& args, const Stream& stream) { return tokens_of(args, stream); }
double bf16_cost(const AttentionArgs&, const Stream&) { return tuning::kBf16AttentionTokens; }

constexpr Kernel<AttentionArgs> kAttention[] = {{"online_softmax", always_supported<AttentionArgs>, attention_workspace,
                                                 run_attention, nullptr, Arithmetic::kF32, cost},
                                                {"bf16", bf16_attention_reason, bf16_attention_workspace,
                                                 run_bf16_attention, nullptr, Arithmetic::k16Bit, bf16_cost}};

}  // namespace

KernelList<AttentionArgs> attention_kernels() { return kAttention; }

}  // namespace thalweg::cpu
