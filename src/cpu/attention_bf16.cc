// Attention of prompts in bf16. The rows of a task are some tokens of one sequence times the query heads that
// share a key head; it visits the keys in blocks of 128. Queries, keys, values and the softmax's weights are rounded to
// bf16, the softmax and all sums are f32. A row's arithmetic depends only on its own sequence.

#include <algorithm>
#include <array>
#include <limits>

#include "core/threads.h"
#include "cpu/attention.h"
#include "cpu/bf16_ops.h"
#include "cpu/scratch.h"

namespace thalweg::cpu {
namespace {

constexpr std::int64_t kRows = 256;  // at most: each block of keys is prepared once for all of them
constexpr std::int64_t kKeys = 128;
constexpr std::int64_t kRowStep = 2 * kTileSide;  // Bf16Ops::multiply takes pairs of tiles
constexpr std::int64_t kPairedStride = kKeys / kTileDepth * kTileValues;

struct Plan {
  explicit Plan(const AttentionArgs& args)
      : width(args.q.dim(2)),
        key_heads(args.k_cache.dim(2)),
        group(std::max<std::int64_t>(1, args.q.dim(1) / key_heads)),
        tokens(std::clamp<std::int64_t>(kRows / group, 1, std::max<std::int64_t>(1, args.q.dim(0)))),
        rows(round_up(tokens * group, kRowStep)) {}

  std::int64_t width, key_heads;
  std::int64_t group;         // query heads that share a key head
  std::int64_t tokens, rows;  // of a task, at most
};

struct Buffers {
  Buffers(const Plan& plan, Arena& arena)
      : staged(arena.take<float>(kKeys * plan.width)),
        scores(arena.take<float>(plan.rows * kKeys)),
        sums(arena.take<float>(plan.rows * plan.width)),
        maxima(arena.take<float>(plan.rows)),
        totals(arena.take<float>(plan.rows)),
        q(arena.take<std::uint16_t>(plan.rows * plan.width)),
        keys(arena.take<std::uint16_t>(kKeys * plan.width)),
        values(arena.take<std::uint16_t>(kKeys * plan.width)),
        weights(arena.take<std::uint16_t>(plan.rows * kKeys)) {}

  float* staged;           // [kKeys,D], or one row
  float* scores;           // [rows,kKeys]
  float* sums;             // [rows,D]: weighted values so far
  float* maxima;           // [rows]
  float* totals;           // [rows]: sum of the weights so far
  std::uint16_t* q;        // [rows,D]
  std::uint16_t* keys;     // as the right side of products along D
  std::uint16_t* values;   // as the right side of products along keys
  std::uint16_t* weights;  // [rows,kKeys]
};

std::int64_t worker_floats(const Plan& plan) {
  Arena arena;
  const Buffers counted(plan, arena);
  return static_cast<std::int64_t>(arena.used() / sizeof(float));
}

// Some tokens of one sequence and a key head.
class Task {
 public:
  Task(const AttentionArgs& args, const Plan& plan, const Keys& keys, std::int64_t length, Arena scratch)
      : args_(args), plan_(plan), keys_(keys), rows_(length * plan.group), m_(plan, scratch) {}

  void run(std::int64_t first_token) const {
    load_queries(first_token);
    const std::int64_t padded = round_up(rows_, kRowStep);
    std::fill_n(m_.sums, padded * plan_.width, 0.0F);
    std::fill_n(m_.totals, rows_, 0.0F);
    std::fill_n(m_.maxima, rows_, -std::numeric_limits<float>::infinity());
    for (std::int64_t first = 0; first < keys_.end; first += kKeys) attend(first, padded);
    for (std::int64_t row = 0; row < rows_; ++row) {
      finish_row(args_, first_token + row / plan_.group, head_of(row), m_.totals[row], m_.sums + row * plan_.width,
                 m_.staged);
    }
  }

 private:
  std::int64_t head_of(std::int64_t row) const { return keys_.head * plan_.group + row % plan_.group; }

  void load_queries(std::int64_t first_token) const {
    for (std::int64_t row = 0; row < rows_; ++row) {
      const void* const from = args_.q.row(first_token + row / plan_.group, head_of(row));
      vec_.load(args_.q.dtype, from, plan_.width, m_.staged);
      bf16_.round(m_.staged, plan_.width, m_.q + row * plan_.width);
    }
    std::fill_n(m_.q + rows_ * plan_.width, (round_up(rows_, kRowStep) - rows_) * plan_.width, std::uint16_t{0});
  }

  void attend(std::int64_t first, std::int64_t padded) const {
    const std::int64_t count = std::min(kKeys, keys_.end - first);
    const std::int64_t columns = round_up(count, kRowStep);
    // Tokens before `some` attend to no key of the block.
    const std::int64_t some = std::max<std::int64_t>(0, first + 1 - keys_.visible) * plan_.group;
    const std::int64_t begin = some / kRowStep * kRowStep;
    pack_keys({args_.k_cache, keys_.places, keys_.sequence, keys_.head, first, count}, columns);
    TileProduct scores{};
    scores.a = m_.q + begin * plan_.width;
    scores.a_tiles = (padded - begin) / kTileSide;
    scores.a_row = plan_.width;
    scores.b = m_.keys;
    scores.b_tiles = columns / kTileSide;
    scores.b_stride = kTileSide * plan_.width;
    scores.steps = plan_.width / kTileDepth;
    scores.c = m_.scores + begin * kKeys;
    scores.c_row = kKeys;
    bf16_.multiply(scores);
    for (std::int64_t row = begin; row < padded; ++row) weigh(row, first, count, columns);

    pair_values({args_.v_cache, keys_.places, keys_.sequence, keys_.head, first, count}, columns);
    TileProduct sums{};
    sums.a = m_.weights + begin * kKeys;
    sums.a_tiles = scores.a_tiles;
    sums.a_row = kKeys;
    sums.b = m_.values;
    sums.b_tiles = plan_.width / kTileSide;
    sums.b_stride = kPairedStride;
    sums.steps = columns / kTileDepth;
    sums.c = m_.sums + begin * plan_.width;
    sums.c_row = plan_.width;
    sums.accumulate = true;
    bf16_.multiply(sums);
  }

  // A row's scores become weights; what it does not see weighs nothing.
  void weigh(std::int64_t row, std::int64_t first, std::int64_t count, std::int64_t columns) const {
    float* const scores = m_.scores + row * kKeys;
    const std::int64_t token = row / plan_.group;
    const std::int64_t seen = row < rows_ ? std::clamp<std::int64_t>(keys_.visible + token - first, 0, count) : 0;
    if (seen > 0) {
      const float shrink = nn_vector_ops().online_softmax(scale_, scores, seen, m_.maxima + row, m_.totals + row);
      float* const sums = m_.sums + row * plan_.width;
      if (shrink != 1.0F) vec_.scale(shrink, sums, plan_.width, sums);
    }
    std::fill_n(scores + seen, columns - seen, 0.0F);
    bf16_.round(scores, columns, m_.weights + row * kKeys);
  }

  void pack_keys(const CacheBlock& block, std::int64_t columns) const {
    const DType dtype = block.cache.dtype;
    const bool staged = dtype == DType::kQ8_0;
    for (std::int64_t i = 0; i < columns; i += kTileSide) {
      std::array<const void*, kTileSide> rows{};
      for (std::int64_t r = 0; r < std::min(kTileSide, block.count - i); ++r) {
        rows[static_cast<std::size_t>(r)] = staged ? load(block, i + r) : block.row(i + r);
      }
      bf16_.pack(staged ? DType::kF32 : dtype, rows.data(), plan_.width, m_.keys + i * plan_.width);
    }
  }
  void pair_values(const CacheBlock& block, std::int64_t columns) const {
    for (std::int64_t i = 0; i < block.count; ++i) load(block, i);
    std::fill_n(m_.staged + block.count * plan_.width, (columns - block.count) * plan_.width, 0.0F);
    for (std::int64_t i = 0; i < columns; i += 2) {
      const float* const even = m_.staged + i * plan_.width;
      bf16_.pair_rows(even, even + plan_.width, plan_.width, m_.values + i * kTileSide, kPairedStride);
    }
  }
  const float* load(const CacheBlock& block, std::int64_t i) const {
    float* const to = m_.staged + i * plan_.width;
    vec_.load(block.cache.dtype, block.row(i), plan_.width, to);
    return to;
  }

  const VectorOps& vec_ = vector_ops();
  const Bf16Ops& bf16_ = *bf16_ops();
  const AttentionArgs& args_;
  const Plan& plan_;
  const Keys& keys_;
  const std::int64_t rows_;
  const float scale_ = score_scale(args_);
  const Buffers m_;
};

}  // namespace

std::string bf16_attention_reason(const AttentionArgs& args, const Stream&) {
  if (bf16_ops() == nullptr) return "no AMX, and no bf16 in AVX-512";
  if (args.k_cache.dtype != DType::kBF16 && !args.bf16_operands) return "rounds to bf16; bf16_operands allows it";
  if (args.q.dim(2) % kTileDepth != 0) return "D is not a multiple of 32";
  return {};
}

std::size_t bf16_attention_workspace(const AttentionArgs& args, const Stream& stream) {
  return worker_bytes(worker_floats(Plan(args)), stream);
}

void run_bf16_attention(const AttentionArgs& args, Workspace workspace, const Stream& stream) {
  if (args.q.size() == 0) return;
  const Plan plan(args);
  const std::int64_t floats = worker_floats(plan);
  const Sequences sequences(args.cu_seqlens, 1, args.q.dim(0));
  const CachePlaces places(args.slots, args.pages, args.k_cache);
  const auto* lengths = static_cast<const std::int32_t*>(args.lengths.data);
  // The last tokens see most keys: the longest tasks come first.
  const std::int64_t tasks = sequences.total_chunks(plan.tokens) * plan.key_heads;
  parallel_for(stream, tasks, [&](std::int64_t number, int worker) {
    const std::int64_t task = tasks - 1 - number;
    const Chunk chunk = sequences.chunk(task / plan.key_heads, plan.tokens);
    const std::int64_t n = chunk.sequence;
    const std::int64_t visible = lengths[n] - sequences.length(n) + (chunk.begin - sequences.begin(n)) + 1;
    const std::int64_t end = places.absent(n) ? 0 : visible + chunk.length - 1;
    const Keys keys{places, n, task % plan.key_heads, 0, end, visible};
    Task(args, plan, keys, chunk.length, worker_arena(workspace, floats, worker)).run(chunk.begin);
  });
}

}  // namespace thalweg::cpu
