#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/weights.h"
#include "decode/layers.h"
#include "decode/state.h"
#include "thalweg/device.h"

namespace thalweg::decode {

using checkpoint::Weights;

// New tokens of the sequence in a slot. A batch names a slot once.
struct DecoderInput {
  int slot = 0;
  std::span<const std::int32_t> tokens;
};

// Which tokens' logits are computed.
enum class LogitsOf : std::uint8_t { kLast, kEach };

// Called with the logits [vocabulary] after token `token` of input `input`.
using LogitsCallback = std::function<void(std::size_t input, std::int64_t token, std::span<const float> logits)>;

// The layers, from token ids to logits. It calls operations; the device of the stream decides what runs them.
class Decoder {
 public:
  Decoder(const ModelConfig& config, const Weights& weights, const Stream& stream, MatmulPrecision precision,
          std::int64_t chunk);

  // Runs new tokens and advances their sequences. The tokens of each input are cut into chunks of at most `chunk`, and
  // chunks that fit into `chunk` tokens together run together; single tokens take the decode step, together. So the
  // chunks of a sequence do not depend on its neighbors. The pool must have room for the tokens, and the tokens must be
  // in the vocabulary. `should_continue`, if given, is called between two such runs; when it returns false, the
  // remaining tokens are not run and this returns false.
  bool run(std::span<const DecoderInput> inputs, StatePool& pool, LogitsOf which, const LogitsCallback& on_logits,
           const std::function<bool()>& should_continue);

  const Stream& stream() const { return stream_; }
  MatmulPrecision precision() const { return step_.precision; }

 private:
  // Tokens [begin, begin + count) of an input.
  struct Chunk {
    std::size_t input;
    std::int64_t begin;
    std::int64_t count;
  };

  // A row of h whose logits are wanted.
  struct LogitsRow {
    std::int32_t row;
    std::size_t input;
    std::int64_t token;
  };

  // Of one run of T tokens.
  struct Activations {
    Tensor h;       // [T,D]: the residual stream
    Tensor x;       // [T,D]: what a block reads, normed
    Tensor y;       // [T,D]: what a block returns
    Tensor logits;  // [rows,vocabulary]
  };

  void run_chunks(std::span<const Chunk> chunks, std::span<const DecoderInput> inputs, StatePool& pool, LogitsOf which,
                  const LogitsCallback& on_logits);
  void begin_step(std::span<const Chunk> chunks, std::span<const DecoderInput> inputs, const StatePool& pool);
  void run_layers(const Activations& activations, StatePool& pool);
  void report_logits(const Activations& activations, std::span<const LogitsRow> rows, const LogitsCallback& on_logits);

  const ModelConfig& config_;
  const Weights& weights_;
  Stream stream_;
  std::int64_t chunk_;
  Step step_;
  HostWorkspace activations_;
};

}  // namespace thalweg::decode
