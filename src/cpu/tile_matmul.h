#pragma once

// Matmuls on matrix units: what linear, the expert matmuls and moe_ffn share, on top of cpu/tile_ops.h.
//
// Activations are packed once, in groups of 16 rows. A task multiplies up to 256 weight rows with up to 256 rows of
// activations: for each 512 weights along K, it decodes 64 rows at a time into tiles (64 KiB) and multiplies them with
// all the groups. These, the sums of a task (256 KiB) and a segment of the activations (256 KiB) stay in the L2 cache,
// half of one where two threads share a core.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "core/arena.h"
#include "core/threads.h"
#include "cpu/expert_matmul.h"
#include "cpu/tile_ops.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {

inline constexpr std::int64_t kTileSegment = 512;       // weights along K that are decoded at a time
inline constexpr std::int64_t kTileGroupsPerPass = 16;  // groups of activation rows that share the decoding
inline constexpr std::int64_t kSegmentsPerTask = 4;     // of kRowsPerSegment weight rows, at most
static_assert(kRowsPerSegment == kBlockTiles * kTileSide);

constexpr std::int64_t tile_groups(std::int64_t rows) { return (rows + kTileSide - 1) / kTileSide; }

// For explain().
std::string tile_reason(MatmulPrecision precision, DType weight);
std::string tile_remark();

// Rows of activations as tiles, in groups of 16.
class TileRows {
 public:
  TileRows(std::int64_t groups, std::int64_t k, Arena& arena)
      : k_(k),
        steps_((k + kTileDepth - 1) / kTileDepth),
        values_(arena.take<std::uint16_t>(groups * steps_ * kTileValues)) {}

  // row(group, i) is row i of a group, or null.
  template <class Row>
  void pack(const Stream& stream, DType dtype, std::int64_t groups, Row&& row) const {
    const TileOps& ops = *tile_ops();
    const double group_ns = static_cast<double>(kTileSide * k_) * tuning::kElementNs;
    parallel_for(stream, groups, group_ns, [&](std::int64_t group, int) {
      std::array<const void*, kTileSide> rows;
      for (std::int64_t i = 0; i < kTileSide; ++i) rows[static_cast<std::size_t>(i)] = row(group, i);
      ops.pack(dtype, rows.data(), k_, values_ + group * stride());
    });
  }

  std::int64_t stride() const { return steps_ * kTileValues; }  // values of a group
  const std::uint16_t* group(std::int64_t group) const { return values_ + group * stride(); }

 private:
  std::int64_t k_;
  std::int64_t steps_;
  std::uint16_t* values_;
};

// Scratch of one worker, in floats: decoded weights, sums, and the transposed sums of one group.
inline constexpr std::int64_t kTilePanelFloats = kBlockTiles * kTileSegment / kTileDepth * kTileValues / 2;
inline constexpr std::int64_t kTileSumFloats = kSegmentsPerTask * kTileGroupsPerPass * kBlockTiles * kTileSums;
inline constexpr std::int64_t kTileScratchFloats = kTilePanelFloats + kTileSumFloats + kBlockTiles * kTileSums;

// What a thread decodes after weights k0 .. k0 + kTileSegment of rows n and up of a task: the weights after them, or
// the beginning of the rows of the next task, task_rows on.
inline const void* ahead_of(const WeightMatrix& weights, std::int64_t n, std::int64_t k0, std::int64_t task_rows) {
  const std::int64_t k1 = k0 + kTileSegment;
  if (k1 < weights.k) return static_cast<const char*>(weights.row(n)) + bytes_of(weights.dtype, k1);
  return n + task_rows + kTileSide <= weights.n ? weights.row(n + task_rows) : nullptr;
}

// Decodes weights k0 .. k0 + count of up to 64 rows of a task from n on, and returns their tiles, without activations.
inline TileBlock decode_block_rows(const WeightMatrix& weights, RowRange task, std::int64_t n, std::int64_t k0,
                                   std::int64_t count, std::uint16_t* panel) {
  constexpr std::int64_t kPanelStride = kTileSegment / kTileDepth * kTileValues;
  const std::int64_t end = std::min(n + kRowsPerSegment, task.end);
  for (std::int64_t row = n; row < end; row += kTileSide) {
    tile_ops()->decode(weights.rows(row, std::min(kTileSide, end - row)), k0, count,
                       ahead_of(weights, row, k0, task.end - task.begin), panel + (row - n) / kTileSide * kPanelStride);
  }
  TileBlock block{};
  block.weights = panel;
  block.weight_tiles = tile_groups(end - n);
  block.weight_stride = kPanelStride;
  block.steps = (count + kTileDepth - 1) / kTileDepth;
  block.accumulate = k0 > 0;
  return block;
}

// Multiplies a range of at most 256 rows of a matrix with `rows` rows of activations, those of the groups from `first`
// on. Calls store(i, n, count, sums) for each row i: its products with the `count` weight rows from n on, 64 at most.
template <class Store>
void multiply_tile_rows(const WeightMatrix& weights, RowRange range, const TileRows& activations, std::int64_t first,
                        std::int64_t rows, Store&& store, float* scratch) {
  const TileOps& ops = *tile_ops();
  auto* panel = reinterpret_cast<std::uint16_t*>(scratch);
  float* transposed = scratch + kTilePanelFloats + kTileSumFloats;
  const auto sums = [&](std::int64_t n, std::int64_t group) {  // [kBlockTiles][kTileSums]
    const std::int64_t segment = (n - range.begin) / kRowsPerSegment;
    return scratch + kTilePanelFloats + (segment * kTileGroupsPerPass + group) * kBlockTiles * kTileSums;
  };
  for (std::int64_t row0 = 0; row0 < rows; row0 += kTileGroupsPerPass * kTileSide) {
    const std::int64_t groups = std::min(kTileGroupsPerPass, tile_groups(rows - row0));
    for (std::int64_t k0 = 0; k0 < weights.k; k0 += kTileSegment) {
      const std::int64_t count = std::min(kTileSegment, weights.k - k0);
      for (std::int64_t n = range.begin; n < range.end; n += kRowsPerSegment) {
        TileBlock block = decode_block_rows(weights, range, n, k0, count, panel);
        block.activations = activations.group(first + row0 / kTileSide) + k0 * kTileSide;
        block.activation_tiles = groups;
        block.activation_stride = activations.stride();
        block.sums = sums(n, 0);
        ops.multiply(block);
      }
    }
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t i0 = row0 + group * kTileSide;
      for (std::int64_t n = range.begin; n < range.end; n += kRowsPerSegment) {
        const std::int64_t count = std::min(kRowsPerSegment, range.end - n);
        ops.transpose(sums(n, group), tile_groups(count), transposed);
        for (std::int64_t i = i0; i < std::min(i0 + kTileSide, rows); ++i) {
          store(i, n, count, transposed + (i - i0) * kBlockTiles * kTileSide);
        }
      }
    }
  }
}

// Nanoseconds of a task: n rows of K weights times m rows of activations.
inline double tile_segment_ns(std::int64_t n, std::int64_t k, std::int64_t m) {
  const auto rows = static_cast<double>(tile_groups(m) * kTileSide);
  return 1e3 * tuning::product_us(tuning::kTileProduct, 1.0, rows, static_cast<double>(n * k), 1);
}

// Rows of weights that a task has where there are `segments` of 64 in all: as many as leave four tasks to each thread.
// Large tasks read the activations less often.
inline std::int64_t tile_task_rows(std::int64_t segments, const Stream& stream) {
  return std::clamp<std::int64_t>(segments / (4 * thread_count(stream)), 1, kSegmentsPerTask) * kRowsPerSegment;
}

// Multiplies a whole matrix with the first `rows` rows of the activations. Workers' scratch memory is scratch_floats
// apart.
template <class Store>
void multiply_tile_matrix(const Stream& stream, const WeightMatrix& weights, const TileRows& activations,
                          std::int64_t rows, Store&& store, float* scratch,
                          std::int64_t scratch_floats = kTileScratchFloats) {
  constexpr std::int64_t kRowsPerTilePass = kTileGroupsPerPass * kTileSide;
  const std::int64_t passes = (rows + kRowsPerTilePass - 1) / kRowsPerTilePass;
  const std::int64_t task_rows = tile_task_rows(segments_of(weights.n) * passes, stream);
  const std::int64_t tasks = (weights.n + task_rows - 1) / task_rows;
  const double each_ns = tile_segment_ns(task_rows, weights.k, std::min(rows, kRowsPerTilePass));
  for_each_segment(stream, tasks * passes, each_ns, [&](std::int64_t i, int worker, bool) {
    const std::int64_t first = i / tasks * kRowsPerTilePass;
    const std::int64_t n = i % tasks * task_rows;
    multiply_tile_rows(
        weights, {n, std::min(n + task_rows, weights.n), false}, activations, first / kTileSide,
        std::min(kRowsPerTilePass, rows - first),
        [&](std::int64_t r, std::int64_t at, std::int64_t count, float* sums) { store(first + r, at, count, sums); },
        scratch + worker * scratch_floats);
  });
}

// The rows of each hit expert in groups of their own.
class ExpertGroups {
 public:
  ExpertGroups(const ExpertRows& lists, Arena& arena)
      : lists_(lists), first_(arena.take<std::int32_t>(hits_at_most(lists) + 1)) {}

  // At most: each hit expert may have one group that is not full.
  static std::int64_t hits_at_most(const ExpertRows& lists) { return std::min(lists.experts, lists.pairs); }
  static std::int64_t at_most(const ExpertRows& lists) { return lists.pairs / kTileSide + hits_at_most(lists); }

  // After lists.build().
  void build() const {
    first_[0] = 0;
    for (std::int64_t hit = 0; hit < lists_.num_hits; ++hit) {
      first_[hit + 1] = first_[hit] + static_cast<std::int32_t>(tile_groups(lists_.count(lists_.hits[hit])));
    }
  }

  std::int64_t first(std::int64_t hit) const { return first_[hit]; }
  // Packs row(pair) of every pair.
  template <class Row>
  void pack(const Stream& stream, DType dtype, const TileRows& to, Row&& row) const {
    to.pack(stream, dtype, first_[lists_.num_hits], [&](std::int64_t group, std::int64_t i) -> const void* {
      const std::int64_t hit = std::upper_bound(first_, first_ + lists_.num_hits, group) - first_ - 1;
      const std::int64_t expert = lists_.hits[hit];
      const std::int64_t at = (group - first_[hit]) * kTileSide + i;
      return at < lists_.count(expert) ? row(lists_.rows[lists_.offsets[expert] + at]) : nullptr;
    });
  }

  // Multiplies a range of rows of hit number `hit`'s matrix with its activations: store(pair, n, count, sums).
  template <class Store>
  void multiply(const ConstTensor& weight, std::int64_t hit, RowRange range, const TileRows& activations, Store&& store,
                float* scratch) const {
    const std::int64_t expert = lists_.hits[hit];
    const std::int32_t* pairs = lists_.rows + lists_.offsets[expert];
    multiply_tile_rows(
        WeightMatrix::of(weight, expert), range, activations, first_[hit], lists_.count(expert),
        [&](std::int64_t i, std::int64_t n, std::int64_t count, float* sums) { store(pairs[i], n, count, sums); },
        scratch);
  }

  // Calls body(hit, range of its N rows, scratch) for all hit experts of weight[E,N,K].
  template <class Body>
  void for_each_task(const Stream& stream, const ConstTensor& weight, float* scratch, Body&& body,
                     std::int64_t scratch_floats = kTileScratchFloats) const {
    const std::int64_t n = weight.dim(1);
    const std::int64_t task_rows = tile_task_rows(lists_.num_hits * segments_of(n), stream);
    const std::int64_t tasks = (n + task_rows - 1) / task_rows;  // of an expert
    const std::int64_t rows_each = lists_.num_hits > 0 ? lists_.pairs / lists_.num_hits : 0;
    for_each_segment(stream, lists_.num_hits * tasks, tile_segment_ns(std::min(n, task_rows), weight.dim(2), rows_each),
                     [&](std::int64_t i, int worker, bool) {
                       body(i / tasks, segment_range(n, i % tasks, false, task_rows),
                            scratch + worker * scratch_floats);
                     });
  }

 private:
  const ExpertRows& lists_;
  std::int32_t* first_;  // [hits + 1] groups
};

// Microseconds for `rows` rows in `experts` matrices of `weights` weights each.
inline double tile_product_us(double experts, double rows, double weights, const Stream& stream) {
  if (experts <= 0.0) return 0.0;
  constexpr double kPass = kTileGroupsPerPass * kTileSide;
  const double each = std::ceil(rows / experts / kTileSide) * kTileSide;
  return tuning::product_us(tuning::kTileProduct, experts * std::ceil(each / kPass), experts * each, weights,
                            thread_count(stream));
}

// The cost of a kernel with tiles beside its rival's. With a hint, the cheaper one for a nominal number of rows runs
// for any number: then the cost is 0 or infinite.
template <class Args, class Cost, class Rival>
double hinted_cost(const Args& args, const Stream& stream, Cost&& cost, Rival&& rival) {
  if (stream.rows == RowHint::kByCount) return cost(args);
  Args nominal = args;
  nominal.x.shape[0] = stream.rows == RowHint::kFew ? 1 : tuning::kManyRows;
  if constexpr (requires { nominal.expert_ids; }) nominal.expert_ids.shape[0] = nominal.x.shape[0];
  return cost(nominal) < rival(nominal) ? 0.0 : std::numeric_limits<double>::infinity();
}

}  // namespace thalweg::cpu
