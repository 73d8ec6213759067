#pragma once

// Which rows of a weight matrix make a tile, the rows that vector lanes multiply side by side.
//
// Adjacent rows are one stream of memory from tile to tile, but within a tile every lane reads a short stream of its
// own, which no processor prefetches: the next tile must be prefetched by instructions. Where lanes are far apart
// instead, each reads row after row, a stream as long as its share of the matrix. AMD's Zen 4 follows that many
// streams, and drops prefetch instructions that come in bursts; see docs/notes/model-decode-cpu.md.

#include <atomic>
#include <cstdint>

namespace thalweg::cpu {

// Whether lanes are far apart: decided by the processor; tests set it. Results have the same bits either way.
std::atomic<bool>& spreads_lanes();

// The order in which the rows of a matrix are multiplied. Position lanes * t + l, l < lanes, is row l * step + t; the
// rows that are left over follow one by one. An odd step keeps the lanes from meeting in the same sets of the caches,
// whatever power of two divides the bytes of a row. The order depends on the sizes alone, so that a task finds the same
// rows in two matrices.
class RowLayout {
 public:
  // With more, products take longer than memory, and sums of rows that are far apart are stored more slowly.
  static constexpr std::int64_t kMostActivations = 16;

  // For a matrix of n rows times m rows of activations.
  RowLayout(std::int64_t n, std::int64_t m, std::int64_t lanes) : lanes_(lanes) {
    constexpr std::int64_t kLeastRows = 4;  // per lane
    if (n < kLeastRows * lanes || m > kMostActivations) return;
    if (spreads_lanes().load(std::memory_order_relaxed)) step_ = (n / lanes - 1) | 1;
  }

  // The positions before this one are spread.
  std::int64_t spread_end() const { return lanes_ * step_; }
  std::int64_t step() const { return step_; }
  std::int64_t row(std::int64_t lane, std::int64_t position) const { return lane * step_ + position / lanes_; }

 private:
  std::int64_t lanes_;
  std::int64_t step_ = 0;  // 0: all rows are adjacent
};

}  // namespace thalweg::cpu
