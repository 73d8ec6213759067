#include "decode/decoder.h"

#include <algorithm>

namespace thalweg::model {
namespace {

// Rows whose logits are computed together, so that a large vocabulary does not ask for a matrix of the whole chunk.
constexpr std::int64_t kLogitRows = 16;

Tensor rows_view(std::vector<float>& memory, std::int64_t rows, std::int64_t columns) {
  const auto floats = static_cast<std::size_t>(rows * columns);
  if (memory.size() < floats) memory.resize(floats);
  return {memory.data(), DType::kF32, {rows, columns}, kCpu};
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, const Weights& weights, const Stream& stream, MatmulPrecision precision,
                 std::int64_t chunk)
    : config_(config), weights_(weights), stream_(stream), chunk_(chunk) {
  step_.stream = stream;
  step_.precision = precision;
}

bool Decoder::run(std::span<const DecoderInput> inputs, StatePool& pool, LogitsOf which, const HearLogits& hear,
                  const std::function<bool()>& go_on) {
  std::int64_t longest = 0;
  for (const DecoderInput& input : inputs) {
    longest = std::max(longest, pool.length(input.slot) + static_cast<std::int64_t>(input.tokens.size()));
  }
  pool.reserve(longest);

  // Pieces of a sequence stay in order: within a kind they are taken in turn, and the single token that may be left
  // over is a sequence's last piece.
  std::vector<Piece> chunks;
  std::vector<Piece> singles;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto total = static_cast<std::int64_t>(inputs[i].tokens.size());
    for (std::int64_t begin = 0; begin < total; begin += chunk_) {
      const std::int64_t count = std::min(chunk_, total - begin);
      (count == 1 ? singles : chunks).push_back({i, begin, count});
    }
  }
  bool begun = false;
  for (const std::vector<Piece>* pieces : {&chunks, &singles}) {
    std::size_t first = 0;
    while (first < pieces->size()) {
      std::int64_t tokens = 0;
      std::size_t end = first;
      while (end < pieces->size() && tokens + (*pieces)[end].count <= chunk_ &&
             (end == first || (*pieces)[end].input != (*pieces)[end - 1].input)) {
        tokens += (*pieces)[end++].count;
      }
      if (begun && go_on && !go_on()) return false;
      begun = true;
      run_pieces(std::span(*pieces).subspan(first, end - first), inputs, pool, which, hear);
      first = end;
    }
  }
  return true;
}

void Decoder::run_pieces(std::span<const Piece> pieces, std::span<const DecoderInput> inputs, StatePool& pool,
                         LogitsOf which, const HearLogits& hear) {
  step_.decode = pieces.front().count == 1;
  step_.tokens.clear();
  step_.positions.clear();
  step_.slots.clear();
  step_.lengths.clear();
  step_.cu_seqlens.assign(1, 0);
  for (const Piece& piece : pieces) {
    const DecoderInput& input = inputs[piece.input];
    const std::int64_t seen = pool.length(input.slot);
    for (std::int64_t i = 0; i < piece.count; ++i) {
      step_.tokens.push_back(input.tokens[static_cast<std::size_t>(piece.begin + i)]);
      step_.positions.push_back(static_cast<std::int32_t>(seen + i));
    }
    step_.slots.push_back(input.slot);
    step_.lengths.push_back(static_cast<std::int32_t>(seen + piece.count));
    step_.cu_seqlens.push_back(static_cast<std::int32_t>(step_.tokens.size()));
  }

  const std::int64_t count = step_.count();
  const Tensor h = rows_view(hidden_, count, config_.hidden);
  const Tensor x = rows_view(normed_, count, config_.hidden);
  const Tensor y = rows_view(result_, count, config_.hidden);
  EmbeddingArgs embed;
  embed.ids = ConstTensor(step_.tokens.data(), DType::kI32, {count}, kCpu);
  embed.table = weights_.embedding;
  embed.y = h;
  step_.run(embed);

  RmsNormArgs norm;
  norm.x = h;
  norm.y = x;
  norm.eps = config_.norm_eps;
  norm.weight_plus_one = config_.norm_plus_one;
  AddArgs sum;
  sum.a = h;
  sum.b = y;
  sum.y = h;
  for (std::size_t i = 0; i < config_.layers.size(); ++i) {
    const LayerWeights& layer = weights_.layers[i];
    norm.weight = layer.input_norm;
    step_.run(norm);
    if (config_.layers[i] == LayerKind::kGatedDelta) {
      gated_delta_layer(config_, layer.gated_delta, i, pool, step_, x, y);
    } else {
      attention_layer(config_, layer.attention, i, pool, step_, x, y);
    }
    step_.run(sum);
    norm.weight = layer.post_norm;
    step_.run(norm);
    if (config_.sparse[i]) {
      expert_ffn(config_, layer.moe, step_, x, y);
    } else {
      dense_ffn(config_, layer.dense, step_, x, y);
    }
    step_.run(sum);
  }
  for (std::size_t n = 0; n < pieces.size(); ++n) pool.set_length(step_.slots[n], step_.lengths[n]);

  std::vector<std::int32_t> rows;
  std::vector<std::pair<std::size_t, std::int64_t>> names;  // input and token of each row
  std::int32_t row = 0;
  for (const Piece& piece : pieces) {
    const auto total = static_cast<std::int64_t>(inputs[piece.input].tokens.size());
    for (std::int64_t i = 0; i < piece.count; ++i, ++row) {
      if (which == LogitsOf::kLast && piece.begin + i + 1 != total) continue;
      rows.push_back(row);
      names.emplace_back(piece.input, piece.begin + i);
    }
  }
  hear_logits(h, rows,
              [&](std::size_t i, std::span<const float> logits) { hear(names[i].first, names[i].second, logits); });
}

void Decoder::hear_logits(const ConstTensor& h, const std::vector<std::int32_t>& rows,
                          const std::function<void(std::size_t i, std::span<const float> logits)>& hear) {
  const auto total = static_cast<std::int64_t>(rows.size());
  for (std::int64_t first = 0; first < total; first += kLogitRows) {
    const std::int64_t count = std::min(kLogitRows, total - first);
    const Tensor x = rows_view(normed_, count, config_.hidden);
    EmbeddingArgs gather;
    gather.ids = ConstTensor(rows.data() + first, DType::kI32, {count}, kCpu);
    gather.table = h;
    gather.y = x;
    step_.run(gather);
    RmsNormArgs norm;
    norm.x = x;
    norm.weight = weights_.norm;
    norm.y = x;
    norm.eps = config_.norm_eps;
    norm.weight_plus_one = config_.norm_plus_one;
    step_.run(norm);
    const Tensor logits = rows_view(logits_, count, config_.vocabulary);
    step_.multiply(x, weights_.head, logits);
    for (std::int64_t i = 0; i < count; ++i) {
      hear(static_cast<std::size_t>(first + i),
           std::span(static_cast<const float*>(logits.row(i)), static_cast<std::size_t>(config_.vocabulary)));
    }
  }
}

}  // namespace thalweg::model
