#pragma once

#include <cstddef>
#include <cstdint>

#include "decode/rank_group.h"
#include "decode/state.h"
#include "thalweg/tensor.h"

namespace thalweg::decode {

// One rank's share of a long prompt, where every rank has the whole model. Shares follow each other: in each layer a
// rank takes from the one before it what its tokens depend on, the recurrent and convolution states or the keys and
// values, and gives what its own tokens made of it to the next. So ranks run one behind the other by the time of one
// layer's states, whatever the number of layers, and compute what one rank would.
class SequenceShare {
 public:
  // Whether so many tokens of a sequence are worth sharing out.
  static bool takes(const RankGroup* group, std::int64_t tokens);
  // Of `tokens` of a slot that has `seen` so many.
  SequenceShare(const ModelConfig& config, RankGroup& group, StatePool& pool, int slot, std::int64_t seen,
                std::int64_t tokens);

  // Tokens of the longest share.
  std::int64_t longest() const;
  // This rank's tokens, among those of all.
  std::int64_t begin() const { return cut(group_.rank()); }
  std::int64_t end() const { return cut(group_.rank() + 1); }
  bool is_last() const { return group_.rank() + 1 == group_.count(); }

  // Before and after a gated delta layer's states are read and written.
  void take_states(std::size_t layer) const;
  void give_states(std::size_t layer) const;
  // Between an attention layer's keys and values are stored and read.
  void pass_cache(std::size_t layer) const;
  // At the end: every rank gets the states of the last one, all keys and values, and the logits, if there are any.
  void finish(const Tensor& logits) const;

 private:
  std::int64_t cut(int rank) const;
  double cost(double tokens) const;
  void exchange_states(std::size_t layer, int from, int to) const;

  RankGroup& group_;
  StatePool& pool_;
  int slot_;
  std::int64_t seen_;
  std::int64_t tokens_;
  double cost_of_key_;  // what a key that a token sees costs, over what the token costs besides
};

}  // namespace thalweg::decode
