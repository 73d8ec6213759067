#pragma once

#include <cstdint>

#include "core/sequences.h"
#include "thalweg/tensor.h"

namespace thalweg {

// Where the positions of sequences lie in a cache [slots,S,HKV,D] or [pages,S,HKV,D]. Reads slots and pages on the
// host.
class CachePlaces {
 public:
  struct Place {
    std::int64_t slot;  // or page
    std::int64_t row;
  };

  CachePlaces(const ConstTensor& slots, const ConstTensor& pages, const ConstTensor& cache)
      : slots_(slots), pages_(pages), rows_(cache.dim(1)) {}

  // Positions that a sequence can have.
  std::int64_t capacity() const { return pages_.defined() ? pages_.dim(1) * rows_ : rows_; }

  bool absent(std::int64_t n) const { return (pages_.defined() ? page(n, 0) : state_slot(slots_, n)) == -1; }

  Place place(std::int64_t n, std::int64_t position) const {
    if (!pages_.defined()) return {state_slot(slots_, n), position};
    return {page(n, position / rows_), position % rows_};
  }

  // Whether positions first..last, first <= last, are neighbors in memory.
  bool together(std::int64_t first, std::int64_t last) const {
    return !pages_.defined() || first / rows_ == last / rows_;
  }

 private:
  std::int64_t page(std::int64_t n, std::int64_t i) const { return static_cast<const std::int32_t*>(pages_.row(n))[i]; }

  ConstTensor slots_;
  ConstTensor pages_;
  std::int64_t rows_;
};

}  // namespace thalweg
