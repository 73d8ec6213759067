#pragma once

// RowHint on CUDA. With kFew or kMany a call is planned as if it had a nominal number of rows: which kernel runs, and
// into how many sums it divides columns, positions or chunks, so that a row's bits do not depend on the rows beside it.
// What only divides rows among blocks follows their true number.

#include <cstdint>

#include "cuda/tuning.h"
#include "thalweg/device.h"

namespace thalweg::cu {

inline bool is_hinted(const Stream& stream) { return stream.rows != RowHint::kByCount; }

// The number that a call of `rows` rows is planned for.
inline std::int64_t planned_rows(std::int64_t rows, const Stream& stream) {
  if (!is_hinted(stream)) return rows;
  return stream.rows == RowHint::kFew ? tuning::kFewRows : tuning::kManyRows;
}

// The cost of a kernel whose rows have bits that depend on their number: with a hint it runs only if no other can.
inline double cost_by_count(double cost, const Stream& stream) {
  return is_hinted(stream) ? tuning::kAgainstHint : cost;
}

}  // namespace thalweg::cu
