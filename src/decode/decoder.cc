#include "decode/decoder.h"

#include <algorithm>

namespace thalweg::decode {
namespace {

// Rows whose logits are computed together: a large vocabulary must not need a matrix of the whole chunk.
constexpr std::int64_t kLogitRows = 16;

}  // namespace

Decoder::Decoder(const ModelConfig& config, const Weights& weights, const Stream& stream, MatmulPrecision precision,
                 std::int64_t chunk)
    : config_(config), weights_(weights), stream_(stream), chunk_(chunk) {
  step_.stream = stream;
  step_.precision = precision;
}

bool Decoder::run(std::span<const DecoderInput> inputs, StatePool& pool, LogitsOf which,
                  const LogitsCallback& on_logits, const std::function<bool()>& should_continue) {
  std::int64_t longest = 0;
  for (const DecoderInput& input : inputs) {
    longest = std::max(longest, pool.length(input.slot) + static_cast<std::int64_t>(input.tokens.size()));
  }
  pool.reserve(longest);

  // The chunks of a sequence run in order: within a list they keep it, and the single token that may be left over is a
  // sequence's last chunk.
  std::vector<Chunk> several;
  std::vector<Chunk> singles;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto total = static_cast<std::int64_t>(inputs[i].tokens.size());
    for (std::int64_t begin = 0; begin < total; begin += chunk_) {
      const std::int64_t count = std::min(chunk_, total - begin);
      (count == 1 ? singles : several).push_back({i, begin, count});
    }
  }
  bool begun = false;
  for (const std::vector<Chunk>* chunks : {&several, &singles}) {
    std::size_t first = 0;
    while (first < chunks->size()) {
      std::int64_t tokens = 0;
      std::size_t end = first;
      while (end < chunks->size() && tokens + (*chunks)[end].count <= chunk_ &&
             (end == first || (*chunks)[end].input != (*chunks)[end - 1].input)) {
        tokens += (*chunks)[end++].count;
      }
      if (begun && should_continue && !should_continue()) return false;
      begun = true;
      run_chunks(std::span(*chunks).subspan(first, end - first), inputs, pool, which, on_logits);
      first = end;
    }
  }
  return true;
}

void Decoder::begin_step(std::span<const Chunk> chunks, std::span<const DecoderInput> inputs, const StatePool& pool) {
  step_.decode = chunks.front().count == 1;
  step_.tokens.clear();
  step_.positions.clear();
  step_.slots.clear();
  step_.lengths.clear();
  step_.cu_seqlens.assign(1, 0);
  for (const Chunk& chunk : chunks) {
    const DecoderInput& input = inputs[chunk.input];
    const std::int64_t seen = pool.length(input.slot);
    for (std::int64_t i = 0; i < chunk.count; ++i) {
      step_.tokens.push_back(input.tokens[static_cast<std::size_t>(chunk.begin + i)]);
      step_.positions.push_back(static_cast<std::int32_t>(seen + i));
    }
    step_.slots.push_back(input.slot);
    step_.lengths.push_back(static_cast<std::int32_t>(seen + chunk.count));
    step_.cu_seqlens.push_back(static_cast<std::int32_t>(step_.tokens.size()));
  }
}

void Decoder::run_layers(const Activations& activations, StatePool& pool) {
  const auto& [h, x, y, logits] = activations;
  EmbeddingArgs embed;
  embed.ids = step_.tokens_view();
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
    const checkpoint::LayerWeights& layer = weights_.layers[i];
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
}

void Decoder::run_chunks(std::span<const Chunk> chunks, std::span<const DecoderInput> inputs, StatePool& pool,
                         LogitsOf which, const LogitsCallback& on_logits) {
  begin_step(chunks, inputs, pool);
  std::vector<LogitsRow> rows;
  std::int32_t row = 0;
  for (const Chunk& chunk : chunks) {
    const auto total = static_cast<std::int64_t>(inputs[chunk.input].tokens.size());
    for (std::int64_t i = chunk.begin; i < chunk.begin + chunk.count; ++i, ++row) {
      if (which == LogitsOf::kEach || i + 1 == total) rows.push_back({row, chunk.input, i});
    }
  }
  const std::int64_t count = step_.count();
  const std::int64_t logit_rows = std::min(kLogitRows, static_cast<std::int64_t>(rows.size()));
  const Activations activations = lay_out(activations_, [&](Arena& arena) {
    Activations taken;
    for (Tensor* tensor : {&taken.h, &taken.x, &taken.y}) *tensor = take_matrix(arena, count, config_.hidden);
    taken.logits = take_matrix(arena, logit_rows, config_.vocabulary);
    return taken;
  });
  run_layers(activations, pool);
  for (std::size_t n = 0; n < chunks.size(); ++n) pool.set_length(step_.slots[n], step_.lengths[n]);
  report_logits(activations, rows, on_logits);
}

void Decoder::report_logits(const Activations& activations, std::span<const LogitsRow> rows,
                            const LogitsCallback& on_logits) {
  const auto total = static_cast<std::int64_t>(rows.size());
  std::vector<std::int32_t> ids;
  for (std::int64_t first = 0; first < total; first += kLogitRows) {
    const std::int64_t count = std::min(kLogitRows, total - first);
    const auto group = rows.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    ids.clear();
    for (const LogitsRow& wanted : group) ids.push_back(wanted.row);
    const Tensor x = narrow(activations.x, 0, 0, count);
    EmbeddingArgs gather;
    gather.ids = ConstTensor(ids.data(), DType::kI32, {count}, kCpu);
    gather.table = activations.h;
    gather.y = x;
    step_.run(gather);
    RmsNormArgs norm;
    norm.x = x;
    norm.weight = weights_.norm;
    norm.y = x;
    norm.eps = config_.norm_eps;
    norm.weight_plus_one = config_.norm_plus_one;
    step_.run(norm);
    const Tensor logits = narrow(activations.logits, 0, 0, count);
    step_.multiply(x, weights_.head, logits);
    for (std::int64_t i = 0; i < count; ++i) {
      const LogitsRow& wanted = group[static_cast<std::size_t>(i)];
      on_logits(wanted.input, wanted.token,
                std::span(static_cast<const float*>(logits.row(i)), static_cast<std::size_t>(config_.vocabulary)));
    }
  }
}

}  // namespace thalweg::decode
