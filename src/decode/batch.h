#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decode/runtime.h"
#include "thalweg/tensor.h"

namespace thalweg::decode {

// The arrays of a step over T packed tokens of N sequences: composed on the host, read by the operations where they
// run. The addresses depend on T and N alone, so that a graph of a step can be launched for other values.
class Batch {
 public:
  // Of at most so many tokens and sequences.
  Batch(const Runtime& runtime, std::int64_t most_tokens, std::int64_t most_sequences);

  void clear();
  // The next `tokens` of the sequence in `slot`, which has seen `seen` before; the last `replayed` of those are not in
  // its state yet.
  void add(int slot, std::int64_t seen, std::span<const std::int32_t> tokens, std::int64_t replayed = 0);
  // So many tokens, evenly over so many sequences in the first slots: for planning.
  void fill(std::int64_t tokens, std::int64_t sequences);
  // A row of the step whose logits are wanted.
  void want(std::int32_t row) { rows_.push_back(row); }
  // Lays the arrays out where the operations read them; the views below are valid afterwards.
  void upload();

  std::int64_t count() const { return static_cast<std::int64_t>(tokens_.size()); }
  std::int64_t sequences() const { return static_cast<std::int64_t>(slots_.size()); }
  std::int64_t most_drafts() const { return most_drafts_; }  // of a sequence, in this step or replayed
  std::int64_t wanted() const { return static_cast<std::int64_t>(rows_.size()); }
  std::span<const std::int32_t> slots_on_host() const { return slots_; }
  std::span<const std::int32_t> lengths_on_host() const { return lengths_; }
  std::span<const std::int32_t> rows_on_host() const { return rows_; }
  std::span<const std::int32_t> cu_seqlens_on_host() const { return cu_seqlens_; }

  // Where the operations read them; writable for those that make the next step's.
  const Tensor& tokens() const { return views_[0]; }      // [T]
  const Tensor& positions() const { return views_[1]; }   // [T]
  const Tensor& cu_seqlens() const { return views_[2]; }  // [N+1]
  const Tensor& slots() const { return views_[3]; }       // [N]
  const Tensor& lengths() const { return views_[4]; }     // [N], the new tokens included
  const Tensor& rows() const { return views_[5]; }        // [wanted]
  const Tensor& replays() const { return views_[6]; }     // [N], tokens that are not in the states yet

 private:
  static constexpr std::size_t kArrays = 7;

  const Runtime& runtime_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> cu_seqlens_;
  std::vector<std::int32_t> slots_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int32_t> rows_;
  std::vector<std::int32_t> replays_;
  std::int64_t most_drafts_ = 0;
  std::vector<std::int32_t> staged_;  // all of them, as they lie on the device
  DeviceMemory memory_;
  Tensor views_[kArrays];
};

}  // namespace thalweg::decode
