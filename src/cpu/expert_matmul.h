#pragma once

// What linear, the expert matmuls and moe_ffn share on the CPU.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "core/arena.h"
#include "core/threads.h"
#include "cpu/row_layout.h"
#include "cpu/tuning.h"
#include "cpu/vector.h"
#include "cpu/weight_matmul.h"
#include "thalweg/nn.h"

namespace thalweg::cpu {

// Activation rows per pass over the weights: a pass decodes each weight once.
inline constexpr std::int64_t kRowsPerPass = 192;
// Whether a product runs on 8-bit activations.
inline bool uses_q8(MatmulPrecision precision, DType weight) {
  return precision == MatmulPrecision::kFast && is_block_format(weight);
}
// For explain(): why a kernel with 8-bit activations does not support the arguments, and what the kernels compute with.
std::string q8_reason(MatmulPrecision precision, DType weight);
std::string q8_remark();
std::string exact_remark(MatmulPrecision precision, DType weight);

// Rows of activations as the inner loops read them: f32, or rounded to 8 bits.
class Activations {
 public:
  // x[rows,K] or x[outer,inner,K]. Allocates a copy in the arena unless x can be read in place.
  Activations(const ConstTensor& x, bool q8, Arena& arena);
  // Contiguous rows of f32.
  Activations(const float* x, std::int64_t rows, std::int64_t k, bool q8, Arena& arena);

  void prepare(const Stream& stream) const;

  // Row (i,j) of a tensor of rank 3, row (i,0) of one of rank 2.
  const float* row(std::int64_t i, std::int64_t j) const { return data_ + i * outer_ + j * inner_; }

 private:
  void allocate(Arena& arena);

  ConstTensor x_;
  bool q8_;
  bool copied_ = false;
  std::int64_t rows_i_ = 0;
  std::int64_t rows_j_ = 1;
  std::int64_t row_floats_ = 0;
  float* copy_ = nullptr;
  const float* data_ = nullptr;
  std::int64_t outer_ = 0;  // floats
  std::int64_t inner_ = 0;
};

// One expert's matrix [N,K].
struct WeightMatrix {
  DType dtype;
  const void* data;
  std::int64_t row_bytes;
  std::int64_t n;
  std::int64_t k;

  static WeightMatrix of(const ConstTensor& weight) {  // [N,K]
    return {weight.dtype, weight.data, bytes_of(weight.dtype, weight.stride(0)), weight.dim(0), weight.dim(1)};
  }
  static WeightMatrix of(const ConstTensor& weight, std::int64_t expert) {  // [E,N,K]
    return {weight.dtype, weight.row(expert), bytes_of(weight.dtype, weight.stride(1)), weight.dim(1), weight.dim(2)};
  }

  const void* row(std::int64_t i) const { return static_cast<const char*>(data) + i * row_bytes; }
  WeightRows rows(std::int64_t first, std::int64_t count) const {
    WeightRows tile;
    tile.dtype = dtype;
    tile.data = row(first);
    tile.row_bytes = row_bytes;
    tile.rows = count;
    tile.k = k;
    return tile;
  }
};

// A range of rows of a matrix, as positions of its RowLayout. `continues`: the same thread has just multiplied the rows
// before it.
struct RowRange {
  std::int64_t begin;
  std::int64_t end;
  bool continues;
};

// The rows of a matrix are cut into segments that take a few microseconds.
inline constexpr std::int64_t kRowsPerSegment = 64;
inline std::int64_t segments_of(std::int64_t n) { return (n + kRowsPerSegment - 1) / kRowsPerSegment; }
inline RowRange segment_range(std::int64_t n, std::int64_t segment, bool continues,
                              std::int64_t rows = kRowsPerSegment) {
  return {segment * rows, std::min(n, (segment + 1) * rows), continues && segment > 0};
}
// Rows of a segment where `rows_in_all` rows of weights are multiplied with m rows of activations: fewer where a large
// machine would have too few segments to share.
inline std::int64_t rows_per_segment(std::int64_t rows_in_all, std::int64_t m, const Stream& stream) {
  constexpr std::int64_t kPerThread = 6;
  const std::int64_t least = m == 1 ? kMaxTileRows : kMaxQ8Rows;
  std::int64_t rows = kRowsPerSegment;
  while (rows > least && rows_in_all < kPerThread * thread_count(stream) * rows) rows /= 2;
  return rows;
}
// Nanoseconds for one segment of at most n rows of K weights, times m rows of activations: at least those of reading
// it.
inline double segment_ns(DType weight, std::int64_t n, std::int64_t k, std::int64_t m, bool q8) {
  const std::int64_t rows = std::min(n, kRowsPerSegment);
  const auto weights = static_cast<double>(rows * k);
  const double multiplied = 1e3 * tuning::product_us(tuning::product_cost(q8), 1.0, static_cast<double>(m), weights, 1);
  return std::max(multiplied, tuning::kReadNs * static_cast<double>(rows * bytes_of(weight, k)));
}

// Calls body(segment, worker, continues) for each of 0..segments-1, of about `segment_ns` nanoseconds each. A thread
// takes the segments of its own queue in order, because the hardware prefetches what follows, and then steals from the
// others.
template <class Body>
void for_each_segment(const Stream& stream, std::int64_t segments, double segment_ns, Body&& body) {
  struct alignas(64) Queue {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };
  constexpr std::int64_t kMaxQueues = 64;
  std::array<Queue, kMaxQueues> queues;
  const std::int64_t threads = useful_threads(stream, static_cast<double>(segments) * segment_ns);
  const std::int64_t count = std::min({threads, segments, kMaxQueues});
  for (std::int64_t i = 0; i < count; ++i) {
    Queue& queue = queues[static_cast<std::size_t>(i)];
    queue.next.store(segments * i / count, std::memory_order_relaxed);
    queue.end = segments * (i + 1) / count;
  }
  parallel_for(stream, count, [&](std::int64_t own, int worker) {
    for (std::int64_t i = 0; i < count; ++i) {
      Queue& queue = queues[static_cast<std::size_t>((own + i) % count)];
      std::int64_t before = -2;
      for (;;) {
        const std::int64_t segment = queue.next.fetch_add(1, std::memory_order_relaxed);
        if (segment >= queue.end) break;
        body(segment, worker, segment == before + 1);
        before = segment;
      }
    }
  });
}

// Sums that a lane of a whole segment of spread rows has, with the widest vectors.
inline constexpr std::int64_t kLaneRun = kRowsPerSegment / kMaxTileRows;

// Copies the sums of a store. Nearly all have one of three lengths, for which this is a few moves instead of a call.
inline void copy_sums(const float* sums, std::int64_t count, float* to) {
  if (count == kMaxQ8Rows) {
    std::memcpy(to, sums, kMaxQ8Rows * sizeof(float));
  } else if (count == kMaxTileRows) {
    std::memcpy(to, sums, kMaxTileRows * sizeof(float));
  } else if (count == kLaneRun) {
    std::memcpy(to, sums, kLaneRun * sizeof(float));
  } else {
    std::copy_n(sums, count, to);
  }
}

// Stores the products of row i of x with `count` rows of weights from n on; adds the bias, to `sums` itself.
void store_product(const LinearArgs& args, std::int64_t i, std::int64_t n, std::int64_t count, float* sums);

// Scratch floats of one worker: those of the products, and the sums of a tile or of a segment of spread rows.
inline std::int64_t product_floats() { return matmul_ops().scratch_floats + kRowsPerPass * kMaxQ8Rows; }
static_assert(RowLayout::kMostActivations * kRowsPerSegment <= kRowsPerPass * kMaxQ8Rows);

// The memory of a product: the activations as the inner loops read them, and scratch for each worker.
struct ProductMemory {
  Activations activations;
  float* scratch;

  ProductMemory(const ConstTensor& x, bool q8, const Stream& stream, Arena& arena)
      : activations(x, q8, arena), scratch(arena.take<float>(product_floats() * thread_count(stream))) {}
};

// Multiplies the tiles at positions begin..end, whose lanes are spread, at most kRowsPerSegment. Calls store(i, n,
// count, sums) for each row of activations and each lane, whose rows n, n + 1, ... follow each other.
template <class Store>
void multiply_spread_tiles(const WeightMatrix& weights, const RowLayout& layout, std::int64_t begin, std::int64_t end,
                           bool q8, const float* const* activations, std::int64_t m, Store&& store, float* scratch) {
  const MatmulOps& ops = matmul_ops();
  const std::int64_t lanes = ops.tile_rows;
  const std::int64_t tiles = (end - begin) / lanes;
  float* sums = scratch + ops.scratch_floats;  // [tiles][m][lanes]
  for (std::int64_t t = 0; t < tiles; ++t) {
    WeightRows tile = weights.rows(layout.row(0, begin + t * lanes), lanes);
    tile.row_bytes *= layout.step();
    tile.prefetched = true;
    (q8 ? ops.q8 : ops.exact)(tile, activations, m, sums + t * m * lanes, scratch);
  }
  std::array<float, kRowsPerSegment> run;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      for (std::int64_t t = 0; t < tiles; ++t) {
        run[static_cast<std::size_t>(t)] = sums[(t * m + i) * lanes + lane];
      }
      store(i, layout.row(lane, begin), tiles, run.data());
    }
  }
}

// Multiplies a range of rows of a matrix with `rows` rows of activations; row(i) returns row i. Calls store(i, n,
// count, sums) for each row i and all its sums, runs of `count` from weight row n on, in a fixed order.
template <class Row, class Store>
void multiply_rows(const WeightMatrix& weights, RowRange range, bool q8, std::int64_t rows, Row&& row, Store&& store,
                   float* scratch) {
  const MatmulOps& ops = matmul_ops();
  const RowLayout layout(weights.n, rows, ops.tile_rows);
  const std::int64_t spread_end = std::min(layout.spread_end(), range.end);
  float* sums = scratch + ops.scratch_floats;
  const bool gapless = weights.row_bytes == bytes_of(weights.dtype, weights.k);
  std::array<const float*, kRowsPerPass> activations;
  for (std::int64_t first = 0; first < rows; first += kRowsPerPass) {
    const std::int64_t m = std::min(kRowsPerPass, rows - first);
    for (std::int64_t i = 0; i < m; ++i) activations[static_cast<std::size_t>(i)] = row(first + i);
    std::int64_t n = range.begin;
    while (n < spread_end) {
      const std::int64_t end = std::min(n + kRowsPerSegment, spread_end);
      multiply_spread_tiles(
          weights, layout, n, end, q8, activations.data(), m,
          [&](std::int64_t i, std::int64_t from, std::int64_t count, float* run) {
            store(first + i, from, count, run);
          },
          scratch);
      n = end;
    }
    const std::int64_t most = q8 && m > 1 ? ops.q8_rows : ops.tile_rows;
    for (const std::int64_t begin = n; n < range.end; n += most) {
      const std::int64_t count = std::min(most, range.end - n);
      WeightRows tile = weights.rows(n, count);
      tile.prefetched = gapless && (n > begin || (n == range.begin && range.continues));
      if (gapless && n + 2 * most <= weights.n) tile.next = weights.row(n + most);
      (q8 ? ops.q8 : ops.exact)(tile, activations.data(), m, sums, scratch);
      const std::int64_t apart = count > ops.tile_rows ? most : ops.tile_rows;
      for (std::int64_t i = 0; i < m; ++i) store(first + i, n, count, sums + i * apart);
    }
  }
}

// The (token, slot) pairs of each expert, by a counting sort.
struct ExpertRows {
  std::int64_t experts;
  std::int64_t pairs;
  std::int32_t* offsets;  // [E+1]
  std::int32_t* rows;     // [pairs]
  std::int32_t* hits;     // [min(E, pairs)] the experts with any rows
  std::int64_t num_hits = 0;

  ExpertRows(std::int64_t experts_, std::int64_t pairs_, Arena& arena)
      : experts(experts_),
        pairs(pairs_),
        offsets(arena.take<std::int32_t>(experts + 1)),
        rows(arena.take<std::int32_t>(pairs)),
        hits(arena.take<std::int32_t>(std::min(experts, pairs))) {}

  // id(pair) is the expert of token * S + slot.
  template <class Id>
  void build(Id&& id) {
    fill_expert_rows(experts, pairs, id, offsets, rows);
    num_hits = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      if (offsets[e + 1] > offsets[e]) hits[num_hits++] = static_cast<std::int32_t>(e);
    }
  }

  std::int64_t count(std::int64_t expert) const { return offsets[expert + 1] - offsets[expert]; }

  template <class Id>
  static void fill_expert_rows(std::int64_t experts, std::int64_t pairs, Id&& id, std::int32_t* offsets,
                               std::int32_t* rows) {
    std::fill_n(offsets, experts + 1, 0);
    // An absent expert, -1, is in no list.
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      if (id(pair) >= 0) ++offsets[id(pair) + 1];
    }
    for (std::int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
    // The scatter moves each offset to the end of its expert, which is the start of the next: shift back afterwards.
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      if (id(pair) >= 0) rows[offsets[id(pair)]++] = static_cast<std::int32_t>(pair);
    }
    for (std::int64_t e = experts; e > 0; --e) offsets[e] = offsets[e - 1];
    offsets[0] = 0;
  }
};

// expert_ids[T,S], by pair.
class PairIds {
 public:
  explicit PairIds(const ConstTensor& ids) : ids_(ids), slots_(ids.dim(1)) {}
  std::int32_t operator()(std::int64_t pair) const {
    return static_cast<const std::int32_t*>(ids_.row(pair / slots_))[pair % slots_];
  }

 private:
  const ConstTensor& ids_;
  std::int64_t slots_;
};

// Multiplies a whole matrix with all rows: row(i), store(i, n, count, sums).
template <class Row, class Store>
void multiply_matrix(const Stream& stream, const WeightMatrix& weights, bool q8, std::int64_t rows, Row&& row,
                     Store&& store, float* scratch) {
  // The passes over one segment of the weights follow each other.
  const std::int64_t passes = (rows + kRowsPerPass - 1) / kRowsPerPass;
  const std::int64_t each = rows_per_segment(weights.n * passes, rows, stream);
  const std::int64_t segments = (weights.n + each - 1) / each;
  const double each_ns =
      segment_ns(weights.dtype, std::min(weights.n, each), weights.k, std::min(rows, kRowsPerPass), q8);
  for_each_segment(stream, segments * passes, each_ns, [&](std::int64_t i, int worker, bool continues) {
    const std::int64_t first = i % passes * kRowsPerPass;
    multiply_rows(
        weights, segment_range(weights.n, i / passes, continues, each), q8, std::min(kRowsPerPass, rows - first),
        [&](std::int64_t r) { return row(first + r); },
        [&](std::int64_t r, std::int64_t n, std::int64_t count, float* sums) { store(first + r, n, count, sums); },
        scratch + worker * product_floats());
  });
}

// Multiplies a range of rows of one expert of weight[E,N,K] with that expert's activations: row(pair), store(pair, n,
// count, sums).
template <class Row, class Store>
void multiply_expert(const ConstTensor& weight, std::int64_t expert, RowRange range, bool q8, const ExpertRows& lists,
                     Row&& row, Store&& store, float* scratch) {
  const std::int32_t* pairs = lists.rows + lists.offsets[expert];
  multiply_rows(
      WeightMatrix::of(weight, expert), range, q8, lists.count(expert), [&](std::int64_t i) { return row(pairs[i]); },
      [&](std::int64_t i, std::int64_t n, std::int64_t count, float* sums) { store(pairs[i], n, count, sums); },
      scratch);
}

// Calls body(expert, range of its N rows, scratch) for all hit experts of weight[E,N,K].
template <class Body>
void for_each_expert_task(const Stream& stream, const ExpertRows& lists, const ConstTensor& weight, bool q8,
                          float* scratch, Body&& body) {
  const std::int64_t n = weight.dim(1);
  const std::int64_t segments = segments_of(n);
  const std::int64_t rows_each = lists.num_hits > 0 ? lists.pairs / lists.num_hits : 0;
  const double each_ns = segment_ns(weight.dtype, n, weight.dim(2), rows_each, q8);
  for_each_segment(stream, lists.num_hits * segments, each_ns, [&](std::int64_t i, int worker, bool continues) {
    body(lists.hits[i / segments], segment_range(n, i % segments, continues), scratch + worker * product_floats());
  });
}

}  // namespace thalweg::cpu
