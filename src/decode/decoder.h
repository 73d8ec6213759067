#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/weights.h"
#include "decode/layers.h"
#include "decode/state.h"
#include "thalweg/device.h"

namespace thalweg::model {

// New tokens of the sequence in a slot. A batch names a slot once.
struct DecoderInput {
  int slot = 0;
  std::span<const std::int32_t> tokens;
};

// Which tokens' logits are computed.
enum class LogitsOf : std::uint8_t { kLast, kEach };

// Hears the logits [vocabulary] after token `token` of input `input`.
using HearLogits = std::function<void(std::size_t input, std::int64_t token, std::span<const float> logits)>;

// The layers, from token ids to logits. It calls operations; the device of the weights decides what runs them.
class Decoder {
 public:
  Decoder(const ModelConfig& config, const Weights& weights, const Stream& stream, MatmulPrecision precision,
          std::int64_t chunk);

  // Runs new tokens and moves their sequences on. Inputs are cut into pieces of at most `chunk` tokens from their own
  // start, and pieces that fit into a chunk run together; single tokens take the decode step, with each other. So a
  // sequence's pieces do not depend on its neighbours. The pool has room for the tokens, which are in the vocabulary.
  // Between two such runs `go_on` is asked, if there is one; where it says no, the rest stays undone and this is false.
  bool run(std::span<const DecoderInput> inputs, StatePool& pool, LogitsOf which, const HearLogits& hear,
           const std::function<bool()>& go_on);

  const Stream& stream() const { return stream_; }
  MatmulPrecision precision() const { return step_.precision; }

 private:
  struct Piece {
    std::size_t input;
    std::int64_t begin;
    std::int64_t count;
  };

  void run_pieces(std::span<const Piece> pieces, std::span<const DecoderInput> inputs, StatePool& pool, LogitsOf which,
                  const HearLogits& hear);
  void hear_logits(const ConstTensor& h, const std::vector<std::int32_t>& rows,
                   const std::function<void(std::size_t i, std::span<const float> logits)>& hear);

  const ModelConfig& config_;
  const Weights& weights_;
  Stream stream_;
  std::int64_t chunk_;
  Step step_;
  std::vector<float> hidden_;  // [T,D]: what the layers add to
  std::vector<float> normed_;  // [T,D]: what a block reads
  std::vector<float> result_;  // [T,D]: what a block gives
  std::vector<float> logits_;  // [rows,vocabulary]
};

}  // namespace thalweg::model
