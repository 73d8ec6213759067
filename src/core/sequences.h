#pragma once

#include <cstdint>

#include "thalweg/tensor.h"

namespace thalweg {

// Up to a chunk size of consecutive tokens of one sequence.
struct Chunk {
  std::int64_t sequence;
  std::int64_t row;     // batch row
  std::int64_t begin;   // first token in the row
  std::int64_t length;  // tokens, at most the chunk size
  std::int64_t number;  // index among the chunks of its row
};

// The sequences of a [B,T,...] batch: its rows, or those packed in its one row with bounds cu_seqlens. Reads cu_seqlens
// on the host.
class Sequences {
 public:
  Sequences(const ConstTensor& cu_seqlens, std::int64_t batch, std::int64_t tokens)
      : bounds_(static_cast<const std::int32_t*>(cu_seqlens.data)),
        count_(cu_seqlens.defined() ? cu_seqlens.dim(0) - 1 : batch),
        tokens_(tokens),
        packed_(cu_seqlens.defined()) {}

  std::int64_t count() const { return count_; }
  std::int64_t row(std::int64_t n) const { return packed_ ? 0 : n; }             // batch row
  std::int64_t begin(std::int64_t n) const { return packed_ ? bounds_[n] : 0; }  // first token in the row
  std::int64_t length(std::int64_t n) const { return packed_ ? bounds_[n + 1] - bounds_[n] : tokens_; }

  // Chunks of the row's sequences before n.
  std::int64_t first_chunk(std::int64_t n, std::int64_t chunk_size) const {
    std::int64_t chunks = 0;
    for (std::int64_t m = 0; packed_ && m < n; ++m) chunks += (length(m) + chunk_size - 1) / chunk_size;
    return chunks;
  }
  // Chunks of a batch row.
  std::int64_t chunks(std::int64_t chunk_size) const {
    return packed_ ? first_chunk(count_, chunk_size) : (tokens_ + chunk_size - 1) / chunk_size;
  }

  // Number of chunks of all rows.
  std::int64_t total_chunks(std::int64_t chunk_size) const {
    return packed_ ? chunks(chunk_size) : count_ * chunks(chunk_size);
  }
  // Chunk i of all rows.
  Chunk chunk(std::int64_t i, std::int64_t chunk_size) const {
    std::int64_t n = 0;
    std::int64_t index = i;
    for (;; ++n) {
      const std::int64_t chunks_of_n = (length(n) + chunk_size - 1) / chunk_size;
      if (index < chunks_of_n) break;
      index -= chunks_of_n;
    }
    const std::int64_t rest = length(n) - index * chunk_size;
    return {n, row(n), begin(n) + index * chunk_size, rest < chunk_size ? rest : chunk_size, packed_ ? i : index};
  }

 private:
  const std::int32_t* bounds_;
  std::int64_t count_;
  std::int64_t tokens_;
  bool packed_;
};

// The pool slot of sequence n: n itself without indices, -1 for none.
inline std::int64_t state_slot(const ConstTensor& state_indices, std::int64_t n) {
  return state_indices.defined() ? static_cast<const std::int32_t*>(state_indices.data)[n] : n;
}

}  // namespace thalweg
