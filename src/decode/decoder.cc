#include "decode/decoder.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace thalweg::decode {
namespace {

// Rows whose logits are computed together: a large vocabulary must not need a matrix of the whole chunk.
constexpr std::int64_t kLogitRows = 16;
constexpr std::int64_t kDeviceLogitRows = 128;

}  // namespace

Decoder::Decoder(const ModelConfig& config, const Weights& weights, const Runtime& runtime, std::int64_t chunk,
                 std::int64_t sequences, std::int64_t drafts, bool mtp)
    : config_(config),
      weights_(weights),
      runtime_(runtime),
      chunk_(chunk),
      sequences_(sequences),
      drafts_(drafts),
      batch_(runtime, std::max(chunk, sequences * (1 + drafts)), sequences),
      step_(runtime, batch_) {
  if (mtp) mtp_ = std::make_unique<MtpLayer>(config, weights, runtime, step_, chunk, sequences, drafts);
}

std::int64_t Decoder::logit_rows() const { return runtime_.on_host() ? kLogitRows : kDeviceLogitRows; }

std::int64_t Decoder::round_tokens() const {
  const std::int64_t all = sequences_ * (1 + drafts_);
  return runtime_.on_host() ? all : std::max(sequences_, std::min(all, kDeviceLogitRows));
}

void Decoder::reserve(std::span<const DecoderInput> inputs, StatePool& pool) {
  std::int64_t longest = 0;
  for (const DecoderInput& input : inputs) {
    longest = std::max(longest, pool.length(input.slot) + static_cast<std::int64_t>(input.tokens.size()));
  }
  pool.reserve(longest);
}

bool Decoder::run(std::span<const DecoderInput> inputs, StatePool& pool, LogitsOf which,
                  const LogitsCallback& on_logits, const std::function<bool()>& should_continue) {
  settle_states(inputs, pool);
  reserve(inputs, pool);

  // The chunks of a sequence run in order: within a list they keep it, and the single token that may be left over is a
  // sequence's last chunk.
  std::vector<Chunk> several;
  std::vector<Chunk> singles;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto total = static_cast<std::int64_t>(inputs[i].tokens.size());
    std::int64_t count = 0;
    for (std::int64_t begin = 0; begin < total; begin += count) {
      count = which == LogitsOf::kLast
                  ? next_chunk(inputs[i].slot, pool.length(inputs[i].slot) + begin, total - begin, pool)
                  : std::min(chunk_, total - begin);
      (count == 1 ? singles : several).push_back({i, begin, count, begin + count == total});
    }
  }
  bool begun = false;
  for (const std::vector<Chunk>* chunks : {&several, &singles}) {
    std::size_t first = 0;
    while (first < chunks->size()) {
      std::int64_t tokens = 0;
      std::size_t end = first;
      while (end < chunks->size() && (end == first || tokens + (*chunks)[end].count <= chunk_) &&
             (end == first || (*chunks)[end].input != (*chunks)[end - 1].input)) {
        tokens += (*chunks)[end++].count;
      }
      if (begun && should_continue && !should_continue()) return false;
      begun = true;
      run_chunks(std::span(*chunks).subspan(first, end - first), inputs, pool, which, on_logits, false);
      first = end;
    }
  }
  return true;
}

void Decoder::run_drafts(std::span<const DecoderInput> inputs, StatePool& pool, const LogitsCallback& on_logits) {
  reserve(inputs, pool);
  std::vector<Chunk> chunks;
  bool plain = true;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    chunks.push_back({i, 0, static_cast<std::int64_t>(inputs[i].tokens.size())});
    plain = plain && inputs[i].tokens.size() == 1 && pool.pending(inputs[i].slot) == 0;
  }
  if (!chunks.empty()) run_chunks(chunks, inputs, pool, LogitsOf::kEach, on_logits, !plain);
}

void Decoder::draft(std::span<const MtpLayer::Request> requests, StatePool& pool,
                    std::span<std::vector<std::int32_t>> drafts) {
  std::int64_t longest = 0;
  for (const MtpLayer::Request& request : requests) {
    longest = std::max(longest, pool.length(request.slot) + 1 + request.most);
  }
  pool.reserve(longest);
  mtp_->draft(requests, pool, drafts);
}

void Decoder::settle(std::span<const DecoderInput> inputs, StatePool& pool) {
  if (mtp_ != nullptr) {
    std::vector<int> slots;
    for (const DecoderInput& input : inputs) slots.push_back(input.slot);
    mtp_->settle(slots, pool);
  }
  settle_states(inputs, pool);
}

void Decoder::settle_states(std::span<const DecoderInput> inputs, StatePool& pool) {
  batch_.clear();
  for (const DecoderInput& input : inputs) {
    const std::int64_t pending = pool.pending(input.slot);
    if (pending > 0) batch_.add(input.slot, pool.length(input.slot), {}, pending);
  }
  if (batch_.sequences() == 0) return;
  batch_.upload();
  step_.batch = &batch_;
  step_.set_decode(true);
  for (std::size_t i = 0; i < config_.layers.size(); ++i) {
    if (config_.layers[i] != LayerKind::kGatedDelta) continue;
    settle_gated_delta(config_, weights_.layers[i].gated_delta, i, pool, step_);
  }
  for (const int slot : batch_.slots_on_host()) pool.set_pending(slot, 0);
}

Decoder::Activations Decoder::lay_out_activations(std::int64_t wanted) {
  const std::int64_t count = step_.count();
  const std::int64_t rows = std::min(logit_rows(), wanted);
  return lay_out(step_.activations, [&](Arena& arena) {
    Activations taken;
    taken.h = step_.take_f32(arena, count, config_.hidden);
    for (Tensor* tensor : {&taken.x, &taken.y}) *tensor = step_.take(arena, count, config_.hidden);
    if (mtp_ != nullptr) taken.hidden = step_.take_f32(arena, count, config_.hidden);
    taken.wanted = step_.take_f32(arena, rows, config_.hidden);
    taken.logits = step_.take_f32(arena, rows, config_.vocabulary);
    return taken;
  });
}

void Decoder::run_layers(const Activations& activations, StatePool& pool) {
  step_.rope_frequencies = weights_.rope_frequencies;
  EmbeddingArgs embed;
  embed.ids = step_.batch->tokens();
  embed.table = weights_.embedding;
  embed.y = activations.h;
  step_.run(embed);

  // A block's output joins the residual stream in the norm that follows.
  RmsNormArgs norm;
  norm.x = activations.h;
  norm.y = activations.x;
  norm.eps = config_.norm_eps;
  norm.weight_plus_one = config_.norm_plus_one;
  for (std::size_t i = 0; i < config_.layers.size(); ++i) {
    const checkpoint::LayerWeights& layer = weights_.layers[i];
    norm.weight = layer.input_norm;
    step_.norm(norm);
    if (config_.layers[i] == LayerKind::kGatedDelta) {
      gated_delta_layer(config_, layer.gated_delta, i, pool, step_, activations.x, activations.y);
    } else {
      attention_layer(config_, layer.attention, i, pool, step_, activations.x, activations.y);
    }
    step_.sum_over_ranks(activations.y);
    norm.delta = activations.y;
    norm.sum = activations.h;
    if (i + 1 == config_.layers.size() && late_ffn_) return;
    run_ffn(i, activations.h, activations.y, activations.x);
  }
}

void Decoder::run_ffn(std::size_t i, const Tensor& h, const Tensor& y, const Tensor& x) {
  ffn_layer(config_, weights_.layers[i], config_.sparse[i], step_, h, y, x);
}

void Decoder::run_final_norm(const ConstTensor& h, const ConstTensor& y, const Tensor& normed) {
  RmsNormArgs norm;
  norm.x = h;
  norm.delta = y;  // the last block's output, which has not joined the residual stream yet
  norm.y = normed;
  norm.weight = weights_.norm;
  norm.eps = config_.norm_eps;
  norm.weight_plus_one = config_.norm_plus_one;
  step_.norm(norm);
}

void Decoder::run_norm_and_head(const ConstTensor& h, const ConstTensor& y, const Activations& activations,
                                const Tensor& logits) {
  const Tensor normed = narrow(activations.x, 0, 0, h.dim(0));
  run_final_norm(h, y, normed);
  const RowHint of_layers = std::exchange(step_.row_hint, step_.head_hint);
  if (step_.group == nullptr) {
    step_.multiply(normed, weights_.head, logits);
  } else if (!runtime_.on_host()) {
    // Each rank has some rows of the head, and all get all logits: each chooses tokens, the same ones.
    RankedDevice& device = *step_.group->device();
    if (step_.exchanges()) device.begin_columns(logits);
    step_.multiply(normed, weights_.head, device.mine(logits));
    if (step_.exchanges()) device.end_columns(logits);
  } else {
    // Each rank has some rows of the head; rank 0 chooses tokens.
    const Tensor mine =
        lay_out(step_.scratch, [&](Arena& arena) { return step_.take_f32(arena, h.dim(0), weights_.head.dim(0)); });
    step_.multiply(normed, weights_.head, mine);
    if (!step_.planning) step_.group->gather_columns(mine, logits, config_.vocabulary);
  }
  step_.row_hint = of_layers;
}

void Decoder::run_head(const Rows& rows, const Activations& activations, const Tensor& logits) {
  if (late_ffn_) run_ffn(config_.layers.size() - 1, rows.h, rows.y, rows.x);
  run_norm_and_head(rows.h, rows.y, activations, logits);
}

Decoder::Rows Decoder::rows_of(const Activations& activations, std::int64_t first, std::int64_t count) {
  return {narrow(activations.h, 0, first, count), narrow(activations.y, 0, first, count),
          narrow(activations.x, 0, first, count)};
}

Decoder::Rows Decoder::gather(const Activations& activations, const ConstTensor& rows) {
  const auto gathered = [&](const Tensor& from, const Tensor& to) {
    EmbeddingArgs args;
    args.ids = rows;
    args.table = from;
    args.y = narrow(to, 0, 0, rows.dim(0));
    step_.run(args);
    return args.y;
  };
  const Tensor h = gathered(activations.h, activations.wanted);
  const Tensor y = gathered(activations.y, activations.x);
  return {h, y, narrow(activations.y, 0, 0, rows.dim(0))};
}

void Decoder::run_wanted(const Activations& activations, std::int64_t first, std::int64_t count) {
  const std::span<const std::int32_t> rows =
      batch_.rows_on_host().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  const bool contiguous = rows.back() - rows.front() + 1 == count;
  run_head(contiguous ? rows_of(activations, rows.front(), count)
                      : gather(activations, narrow(batch_.rows(), 0, first, count)),
           activations, narrow(activations.logits, 0, 0, count));
}

void Decoder::enqueue_step(const Batch& batch, StatePool& pool, const Tensor& logits) {
  step_.batch = &batch;
  step_.set_decode(true);
  step_.norms_sum = true;
  late_ffn_ = false;
  const Activations activations = lay_out_activations(0);
  run_layers(activations, pool);
  run_head(rows_of(activations, 0, step_.count()), activations, logits);
}

void Decoder::enqueue_drafts(const Batch& batch, StatePool& pool, const Tensor& logits, bool plain) {
  step_.batch = &batch;
  step_.set_decode(true);
  step_.drafts = !plain;
  late_ffn_ = false;
  const Activations activations = lay_out_activations(0);
  run_layers(activations, pool);
  if (mtp_ != nullptr) run_final_norm(activations.h, activations.y, activations.hidden);
  run_head(rows_of(activations, 0, step_.count()), activations, logits);
}

void Decoder::begin_round(std::span<const MtpLayer::Tokens> runs, StatePool& pool) {
  if (mtp_ != nullptr) mtp_->make_room(runs, pool);
}

void Decoder::end_round(const Batch& batch, std::span<const MtpLayer::Tokens> runs, StatePool& pool) {
  if (mtp_ == nullptr) return;
  step_.batch = &batch;
  mtp_->take(runs, lay_out_activations(0).hidden, pool);
}

void Decoder::run_chunks(std::span<const Chunk> chunks, std::span<const DecoderInput> inputs, StatePool& pool,
                         LogitsOf which, const LogitsCallback& on_logits, bool drafts) {
  if (group_ == nullptr) return run_chunks_here(chunks, inputs, pool, which, on_logits, drafts);
  std::vector<RankedChunk> ranked;
  for (const Chunk& chunk : chunks) {
    const DecoderInput& input = inputs[chunk.input];
    const auto tokens =
        input.tokens.subspan(static_cast<std::size_t>(chunk.begin), static_cast<std::size_t>(chunk.count));
    ranked.push_back({input.slot, pool.length(input.slot), chunk.last, {tokens.begin(), tokens.end()}});
  }
  // What the callback throws waits for the end of the run, which the other ranks are in the midst of.
  std::exception_ptr thrown;
  const LogitsCallback guarded = [&](std::size_t input, std::int64_t token, std::span<const float> logits) {
    if (thrown != nullptr) return;
    try {
      on_logits(input, token, logits);
    } catch (...) {
      thrown = std::current_exception();
    }
  };
  group_->run(ranked, which == LogitsOf::kEach, [&] { run_chunks_here(chunks, inputs, pool, which, guarded, drafts); });
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

void Decoder::follow(std::span<const RankedChunk> chunks, bool each_logits, StatePool& pool) {
  std::vector<Chunk> here;
  std::vector<DecoderInput> inputs;
  for (const RankedChunk& chunk : chunks) {
    const auto count = static_cast<std::int64_t>(chunk.tokens.size());
    pool.set_length(chunk.slot, chunk.seen);
    pool.reserve(chunk.seen + count);
    here.push_back({inputs.size(), 0, count, chunk.last});
    inputs.push_back({chunk.slot, chunk.tokens});
  }
  run_chunks_here(
      here, inputs, pool, each_logits ? LogitsOf::kEach : LogitsOf::kLast,
      [](std::size_t, std::int64_t, std::span<const float>) {}, false);
}

void Decoder::run_chunks_here(std::span<const Chunk> chunks, std::span<const DecoderInput> inputs, StatePool& pool,
                              LogitsOf which, const LogitsCallback& on_logits, bool drafts) {
  struct Wanted {
    std::size_t input;
    std::int64_t token;
  };
  ++runs_;
  const bool lone = chunks.size() == 1 && which == LogitsOf::kLast && !drafts;
  if (lone && SequenceShare::takes(group_, chunks.front().count)) {
    return run_share(chunks.front(), inputs[chunks.front().input], pool, on_logits);
  }
  std::vector<Wanted> wanted;
  std::vector<MtpLayer::Tokens> runs;
  batch_.clear();
  for (const Chunk& chunk : chunks) {
    const DecoderInput& input = inputs[chunk.input];
    const auto row = static_cast<std::int32_t>(batch_.count());
    const auto tokens =
        input.tokens.subspan(static_cast<std::size_t>(chunk.begin), static_cast<std::size_t>(chunk.count));
    batch_.add(input.slot, pool.length(input.slot), tokens, pool.pending(input.slot));
    runs.push_back({input.slot, tokens, pool.length(input.slot), row});
    for (std::int64_t i = 0; i < chunk.count; ++i) {
      if (which != LogitsOf::kEach && !(chunk.last && i + 1 == chunk.count)) continue;
      batch_.want(row + static_cast<std::int32_t>(i));
      wanted.push_back({chunk.input, chunk.begin + i});
    }
  }
  if (mtp_ != nullptr) mtp_->make_room(runs, pool);
  batch_.upload();
  step_.batch = &batch_;
  step_.set_decode(drafts || chunks.front().count == 1);
  step_.drafts = drafts;
  late_ffn_ = mtp_ == nullptr && batch_.wanted() < batch_.count() && batch_.wanted() <= logit_rows();
  const Activations activations = lay_out_activations(batch_.wanted());
  run_layers(activations, pool);
  if (mtp_ != nullptr) run_final_norm(activations.h, activations.y, activations.hidden);
  for (std::size_t n = 0; n < chunks.size(); ++n) {
    pool.set_length(batch_.slots_on_host()[n], batch_.lengths_on_host()[n]);
    if (drafts) pool.set_pending(batch_.slots_on_host()[n], chunks[n].count - 1);
  }
  if (which == LogitsOf::kEach) step_.head_hint = step_.row_hint;
  for (std::int64_t first = 0; first < batch_.wanted(); first += logit_rows()) {
    const std::int64_t count = std::min(logit_rows(), batch_.wanted() - first);
    run_wanted(activations, first, count);
    report_logits(activations.logits, count, [&](std::int64_t i, std::span<const float> logits) {
      const Wanted& row = wanted[static_cast<std::size_t>(first + i)];
      on_logits(row.input, row.token, logits);
    });
  }
  if (mtp_ != nullptr) mtp_->take(runs, activations.hidden, pool);
}

void Decoder::report_logits(const Tensor& logits, std::int64_t count,
                            const std::function<void(std::int64_t row, std::span<const float> logits)>& report) {
  if (!runtime_.on_host() && !leads()) return;
  const auto vocabulary = static_cast<std::size_t>(config_.vocabulary);
  const auto* from = static_cast<const float*>(logits.data);
  if (!runtime_.on_host()) {
    logits_on_host_.resize(static_cast<std::size_t>(count) * vocabulary);
    runtime_.download(logits_on_host_.data(), from, logits_on_host_.size() * sizeof(float));
    from = logits_on_host_.data();
  }
  for (std::int64_t i = 0; i < count; ++i) {
    report(i, std::span(from + static_cast<std::size_t>(i) * vocabulary, vocabulary));
  }
}

void Decoder::profile(std::span<const DecoderInput> inputs, StatePool& pool, const OnTime& on_time) {
  reserve(inputs, pool);
  batch_.clear();
  for (const DecoderInput& input : inputs) {
    batch_.add(input.slot, pool.length(input.slot), input.tokens);
    batch_.want(static_cast<std::int32_t>(batch_.count()) - 1);
  }
  batch_.upload();
  runtime_.wait();
  step_.batch = &batch_;
  step_.set_decode(batch_.count() == batch_.sequences());
  late_ffn_ = batch_.wanted() < batch_.count() && batch_.wanted() <= logit_rows();
  step_.on_time = on_time;
  const Activations activations = lay_out_activations(batch_.wanted());
  try {
    run_layers(activations, pool);
    run_wanted(activations, 0, std::min(logit_rows(), batch_.wanted()));
  } catch (...) {
    step_.on_time = nullptr;
    throw;
  }
  step_.on_time = nullptr;
}

void Decoder::plan_step(std::int64_t tokens, std::int64_t sequences, StatePool& pool) {
  batch_.fill(tokens, sequences);
  for (std::int64_t row = 0; row < std::min(tokens, logit_rows()); ++row) {
    batch_.want(static_cast<std::int32_t>(row == 0 ? 0 : tokens - std::min(tokens, logit_rows()) + row));
  }
  batch_.upload();
  step_.batch = &batch_;
  step_.set_decode(tokens == sequences);
  const Activations activations = lay_out_activations(batch_.wanted());
  late_ffn_ = false;
  run_layers(activations, pool);
  const std::int64_t wanted = std::min(tokens, logit_rows());
  for (const RowHint hint : {RowHint::kMany, RowHint::kFew}) {
    step_.head_hint = hint;
    run_wanted(activations, 0, wanted);
  }
  // A loop's steps compute all logits together.
  if (step_.decode) {
    run_head(rows_of(activations, 0, tokens), activations, step_.tensor(DType::kF32, tokens, config_.vocabulary));
  }
  late_ffn_ = true;
  for (const RowHint hint : {RowHint::kMany, RowHint::kFew}) {
    step_.head_hint = hint;
    run_wanted(activations, 0, wanted);
  }
  if (mtp_ == nullptr) return;
  run_final_norm(activations.h, activations.y, activations.hidden);
  mtp_->plan_store(tokens, sequences, pool);
}

std::vector<StepMemory*> Decoder::step_memories() {
  std::vector<StepMemory*> memories = {&step_.workspace, &step_.scratch, &step_.activations};
  if (mtp_ != nullptr) memories.push_back(&mtp_->memory());
  return memories;
}

void Decoder::plan_drafts(std::int64_t tokens, std::int64_t sequences, StatePool& pool) {
  batch_.fill(tokens, sequences);
  batch_.upload();
  enqueue_drafts(batch_, pool, step_.tensor(DType::kF32, tokens, config_.vocabulary), false);
}

std::size_t Decoder::plan(StatePool& pool) {
  step_.planning = true;
  const std::vector<StepMemory*> memories = step_memories();
  for (StepMemory* memory : memories) memory->begin_counting();
  for (std::int64_t tokens = 1; tokens <= chunk_;
       tokens = tokens < chunk_ ? std::min(2 * tokens, chunk_) : tokens + 1) {
    if (tokens > 1) plan_step(tokens, 1, pool);
    if (tokens <= sequences_) plan_step(tokens, tokens, pool);
    if (tokens > sequences_ && sequences_ > 1) plan_step(tokens, sequences_, pool);
  }
  // Rounds with drafts: of one sequence, and of all of them.
  for (std::int64_t tokens = 2; drafts_ > 0 && tokens <= round_tokens(); ++tokens) {
    if (tokens <= 1 + drafts_) plan_drafts(tokens, 1, pool);
    if (sequences_ > 1 && tokens > sequences_) plan_drafts(tokens, sequences_, pool);
  }
  if (mtp_ != nullptr) mtp_->plan_drafts(pool);
  std::size_t bytes = 0;
  for (const StepMemory* memory : memories) bytes += memory->counted();
  step_.planning = false;
  return bytes;
}

void Decoder::allocate() {
  for (StepMemory* memory : step_memories()) memory->end_counting();
}

}  // namespace thalweg::decode
