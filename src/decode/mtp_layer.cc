#include "decode/mtp_layer.h"

#include <algorithm>

#include "core/sampling.h"
#include "thalweg/sampling.h"

namespace thalweg::decode {

MtpLayer::MtpLayer(const checkpoint::ModelConfig& config, const checkpoint::Weights& weights, const Runtime& runtime,
                   Step& step, std::int64_t chunk, std::int64_t sequences, std::int64_t drafts)
    : config_(config),
      weights_(weights),
      runtime_(runtime),
      step_(step),
      sequences_(sequences),
      drafts_(drafts),
      batch_(runtime, std::max(chunk, sequences * (2 + drafts)), sequences),
      chain_(runtime, sequences, sequences),
      memory_(runtime),
      read_(runtime, static_cast<std::size_t>(drafts * sequences) * sizeof(std::int32_t)) {}

Tensor MtpLayer::kept(const StatePool& pool, int slot) {
  return reshape(narrow(pool.mtp_hidden(), 0, slot, 1), {pool.mtp_kept(), pool.mtp_hidden().dim(2)});
}

void MtpLayer::copy_rows(const Tensor& to, std::int64_t to_row, const ConstTensor& from, std::int64_t from_row,
                         std::int64_t count) const {
  if (count == 0 || step_.planning) return;
  runtime_.copy(to.row(to_row), from.row(from_row),
                static_cast<std::size_t>(bytes_of(from.dtype, count * from.dim(1))));
}

MtpLayer::Activations MtpLayer::take_activations(Arena& arena) const {
  const std::int64_t count = step_.count();
  Activations a;
  a.hidden = step_.take_f32(arena, count, config_.hidden);
  a.h = step_.take_f32(arena, count, config_.hidden);
  a.joined = step_.take(arena, count, 2 * config_.hidden);
  a.x = step_.take(arena, count, config_.hidden);
  a.y = step_.take(arena, count, config_.hidden);
  return a;
}

MtpLayer::Outputs MtpLayer::take_outputs(Arena& arena, std::int64_t sequences) const {
  Outputs out;
  out.h = step_.take_f32(arena, sequences, config_.hidden);
  out.y = step_.take(arena, sequences, config_.hidden);
  out.x = step_.take(arena, sequences, config_.hidden);
  out.hidden = step_.take_f32(arena, sequences, config_.hidden);
  out.logits = step_.take_f32(arena, sequences, config_.vocabulary);
  out.tokens = reshape(step_.take(arena, DType::kI32, sequences, 1), {sequences});
  return out;
}

void MtpLayer::lay_out_pass(std::int64_t sequences, Activations& a, Outputs& out) {
  lay_out(memory_, [&](Arena& arena) {
    // First what outlives a pass, where the next one finds it.
    if (sequences > 0) out = take_outputs(arena, sequences);
    a = take_activations(arena);
    return 0;
  });
}

void MtpLayer::begin(const Batch& batch, bool few) {
  step_.batch = &batch;
  step_.set_decode(few);
  step_.rope_frequencies = weights_.rope_frequencies;
}

void MtpLayer::norm(const ConstTensor& x, const ConstTensor& weight, const Tensor& y) {
  RmsNormArgs args;
  args.x = x;
  args.y = y;
  args.weight = weight;
  args.eps = config_.norm_eps;
  args.weight_plus_one = config_.norm_plus_one;
  step_.run(args);
}

void MtpLayer::join(const Activations& a) {
  const checkpoint::MtpWeights& w = weights_.mtp;
  EmbeddingArgs embed;
  embed.ids = step_.batch->tokens();
  embed.table = w.embedding;
  embed.y = a.h;
  step_.run(embed);
  norm(a.h, w.embedding_norm, column_range(a.joined, 0, config_.hidden));
  norm(a.hidden, w.hidden_norm, column_range(a.joined, config_.hidden, config_.hidden));
  step_.multiply(a.joined, w.fc, a.h);
  norm(a.h, w.layer.input_norm, a.x);
}

void MtpLayer::store(const Activations& a, StatePool& pool) {
  join(a);
  store_keys_and_values(config_, weights_.mtp.layer.attention, pool.mtp_layer(), pool, step_, a.x);
}

std::vector<std::int32_t> MtpLayer::choose(const Activations& a, const Outputs& out, StatePool& pool) {
  join(a);
  attention_layer(config_, weights_.mtp.layer.attention, pool.mtp_layer(), pool, step_, a.x, a.y);
  const std::span<const std::int32_t> bounds = batch_.cu_seqlens_on_host();
  for (std::int64_t n = 0; n < batch_.sequences(); ++n) {
    const std::int64_t last = bounds[static_cast<std::size_t>(n) + 1] - 1;
    copy_rows(out.h, n, a.h, last, 1);
    copy_rows(out.y, n, a.y, last, 1);
  }
  run_head(out);
  return step_.planning ? std::vector<std::int32_t>() : read_tokens(out);
}

void MtpLayer::run_head(const Outputs& out) {
  const std::int64_t count = step_.batch->sequences();
  const auto rows = [&](const Tensor& all) { return narrow(all, 0, 0, count); };
  ffn_layer(config_, weights_.mtp.layer, config_.mtp_sparse, step_, rows(out.h), rows(out.y), rows(out.x));
  RmsNormArgs args;
  args.x = rows(out.h);
  args.delta = rows(out.y);
  args.y = rows(out.hidden);
  args.weight = weights_.mtp.norm;
  args.eps = config_.norm_eps;
  args.weight_plus_one = config_.norm_plus_one;
  step_.run(args);
  args.y = rows(out.x);  // the same in the type that a matrix takes
  step_.run(args);
  step_.multiply(rows(out.x), weights_.mtp.head, rows(out.logits));
  last_logits_ = rows(out.logits);
  if (runtime_.on_host() && !step_.planning) return;  // whose sample_tokens refuses logits that are no numbers
  SampleTokensArgs sample;
  sample.logits = rows(out.logits);
  sample.slots = step_.batch->slots();
  sample.tokens = rows(out.tokens);
  step_.run(sample);
}

std::vector<std::int32_t> MtpLayer::read_tokens(const Outputs& out) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch_.sequences()), -1);
  if (!runtime_.on_host()) {
    runtime_.download(tokens.data(), out.tokens.data, tokens.size() * sizeof(std::int32_t));
    return tokens;
  }
  for (std::size_t n = 0; n < tokens.size(); ++n) {
    const std::span logits(static_cast<const float*>(out.logits.row(static_cast<std::int64_t>(n))),
                           static_cast<std::size_t>(config_.vocabulary));
    if (!has_probabilities(logits)) continue;
    tokens[n] = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  return tokens;
}

void MtpLayer::forget_waiting(int slot, StatePool& pool) const {
  StatePool::MtpRows& rows = pool.mtp_rows(slot);
  const auto waiting = static_cast<std::int64_t>(rows.tokens.size());
  if (waiting > 0) copy_rows(kept(pool, slot), 0, kept(pool, slot), waiting, 1);
  rows.tokens.clear();
}

void MtpLayer::settle(std::span<const int> slots, StatePool& pool) {
  batch_.clear();
  for (const int slot : slots) {
    const std::vector<std::int32_t>& waiting = pool.mtp_rows(slot).tokens;
    if (waiting.empty()) continue;
    // Row i is that of token i + 1.
    batch_.add(slot, pool.length(slot) - static_cast<std::int64_t>(waiting.size()) - 1, waiting);
  }
  if (batch_.count() == 0) return;
  batch_.upload();
  begin(batch_, true);
  Activations a;
  Outputs none;
  lay_out_pass(0, a, none);
  const std::span<const std::int32_t> bounds = batch_.cu_seqlens_on_host();
  for (std::size_t n = 0; n + 1 < bounds.size(); ++n) {
    copy_rows(a.hidden, bounds[n], kept(pool, batch_.slots_on_host()[n]), 0, bounds[n + 1] - bounds[n]);
  }
  store(a, pool);
  for (const int slot : batch_.slots_on_host()) forget_waiting(slot, pool);
}

void MtpLayer::make_room(std::span<const Tokens> runs, StatePool& pool) {
  std::vector<int> slots;
  for (const Tokens& run : runs) {
    const std::size_t waiting = pool.mtp_rows(run.slot).tokens.size();
    if (waiting + run.tokens.size() > static_cast<std::size_t>(drafts_ + 1)) slots.push_back(run.slot);
  }
  settle(slots, pool);
}

void MtpLayer::take(std::span<const Tokens> runs, const Tensor& hidden, StatePool& pool) {
  struct Pass {
    const Tokens* run;
    std::int64_t skipped;  // 1: its first token has its row already, or none
  };
  std::vector<Pass> passes;
  batch_.clear();
  for (const Tokens& run : runs) {
    StatePool::MtpRows& rows = pool.mtp_rows(run.slot);
    if (rows.lost) continue;
    const auto count = static_cast<std::int64_t>(run.tokens.size());
    const bool ahead = rows.tokens.empty() && rows.ahead == run.tokens.front();
    const std::int64_t skipped = run.seen == 0 || ahead ? 1 : 0;
    const std::span<const std::int32_t> fresh = run.tokens.subspan(static_cast<std::size_t>(skipped));
    rows.ahead = -1;
    if (static_cast<std::int64_t>(rows.tokens.size()) + count <= drafts_ + 1) {
      const std::int64_t at = skipped > 0 ? 0 : static_cast<std::int64_t>(rows.tokens.size()) + 1;
      copy_rows(kept(pool, run.slot), at, hidden, run.row, count);
      rows.tokens.insert(rows.tokens.end(), fresh.begin(), fresh.end());
      continue;
    }
    passes.push_back({&run, skipped});
    batch_.add(run.slot, run.seen + skipped - 1, fresh);
  }
  if (passes.empty()) return;
  batch_.upload();
  begin(batch_, false);
  Activations a;
  Outputs none;
  lay_out_pass(0, a, none);
  for (std::size_t n = 0; n < passes.size(); ++n) {
    const Tokens& run = *passes[n].run;
    std::int64_t row = batch_.cu_seqlens_on_host()[n];
    const Tensor before = kept(pool, run.slot);
    if (passes[n].skipped == 0) copy_rows(a.hidden, row++, before, 0, 1);
    const auto count = static_cast<std::int64_t>(run.tokens.size());
    copy_rows(a.hidden, row, hidden, run.row, count - 1);
    copy_rows(before, 0, hidden, run.row + count - 1, 1);
  }
  store(a, pool);
}

std::vector<std::size_t> MtpLayer::begin_drafts(std::span<const Request> requests, const StatePool& pool) {
  std::vector<std::size_t> open;
  batch_.clear();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const StatePool::MtpRows& rows = pool.mtp_rows(requests[i].slot);
    if (rows.lost || pool.length(requests[i].slot) == 0) continue;
    std::vector<std::int32_t> tokens = rows.tokens;
    tokens.push_back(requests[i].next);
    batch_.add(requests[i].slot, pool.length(requests[i].slot) - static_cast<std::int64_t>(tokens.size()), tokens);
    open.push_back(i);
  }
  return open;
}

void MtpLayer::load_kept(std::span<const Request> requests, std::span<const std::size_t> open, const Tensor& hidden,
                         StatePool& pool) {
  const std::span<const std::int32_t> bounds = batch_.cu_seqlens_on_host();
  for (std::size_t n = 0; n < open.size(); ++n) {
    copy_rows(hidden, bounds[n], kept(pool, requests[open[n]].slot), 0, bounds[n + 1] - bounds[n]);
  }
}

void MtpLayer::end_first_pass(std::span<const Request> requests, std::span<const std::size_t> open,
                              StatePool& pool) const {
  for (const std::size_t i : open) {
    forget_waiting(requests[i].slot, pool);
    pool.mtp_rows(requests[i].slot).ahead = requests[i].next;
  }
}

void MtpLayer::draft(std::span<const Request> requests, StatePool& pool, std::span<std::vector<std::int32_t>> drafts) {
  if (runtime_.on_host()) return draft_here(requests, pool, drafts);
  draft_on_device(requests, pool, drafts);
}

void MtpLayer::draft_here(std::span<const Request> requests, StatePool& pool,
                          std::span<std::vector<std::int32_t>> drafts) {
  std::vector<std::size_t> open = begin_drafts(requests, pool);  // requests of the pass, by its sequences
  if (open.empty()) return;
  const auto sequences = static_cast<std::int64_t>(open.size());
  Activations a;
  Outputs out;
  batch_.upload();
  begin(batch_, true);
  lay_out_pass(sequences, a, out);
  load_kept(requests, open, a.hidden, pool);
  std::vector<std::int32_t> chosen = choose(a, out, pool);
  end_first_pass(requests, open, pool);
  while (true) {
    std::vector<std::size_t> rest;
    std::vector<std::int64_t> rows;
    batch_.clear();
    for (std::size_t n = 0; n < open.size(); ++n) {
      const Request& request = requests[open[n]];
      std::vector<std::int32_t>& made = drafts[open[n]];
      if (chosen[n] < 0) continue;
      made.push_back(chosen[n]);
      const auto count = static_cast<std::int64_t>(made.size());
      if (count >= request.most) continue;
      batch_.add(request.slot, pool.length(request.slot) + count - 1, std::span(&made.back(), 1));
      rest.push_back(open[n]);
      rows.push_back(static_cast<std::int64_t>(n));
    }
    if (rest.empty()) return;
    open = std::move(rest);
    batch_.upload();
    lay_out_pass(sequences, a, out);
    // Rows move down only, one after the other.
    for (std::size_t n = 0; n < rows.size(); ++n) {
      copy_rows(a.hidden, static_cast<std::int64_t>(n), out.hidden, rows[n], 1);
    }
    chosen = choose(a, out, pool);
  }
}

void MtpLayer::enqueue(const Kind& kind, const Activations& a, const Outputs& out, StatePool& pool) {
  if (!kind.first) copy_rows(a.hidden, 0, out.hidden, 0, kind.sequences);
  join(a);
  attention_layer(config_, weights_.mtp.layer.attention, pool.mtp_layer(), pool, step_, a.x, a.y);
  const auto take_last = [&](const Tensor& from, const Tensor& to) {
    EmbeddingArgs gather;
    gather.ids = batch_.rows();
    gather.table = from;
    gather.y = to;
    step_.run(gather);
  };
  if (kind.first) {
    take_last(a.h, out.h);
    take_last(a.y, out.y);
  } else {
    copy_rows(out.h, 0, a.h, 0, kind.sequences);
    copy_rows(out.y, 0, a.y, 0, kind.sequences);
  }
  run_head(out);
  AdvanceArgs advance;
  advance.tokens = out.tokens;
  advance.ids = chain_.tokens();
  advance.positions = chain_.positions();
  advance.lengths = chain_.lengths();
  advance.slots = chain_.slots();
  step_.run(advance);
}

void MtpLayer::launch(const Kind& kind, const Activations& a, const Outputs& out, StatePool& pool) {
  constexpr std::size_t kMostGraphs = 64;
  const auto generation = [&] { return step_.generation() + memory_.allocations(); };
  if (recorded_generation_ != generation() || graphs_.size() >= kMostGraphs) graphs_.clear();
  recorded_generation_ = generation();
  const auto found = graphs_.find(kind);
  // The first pass of a kind runs as it is, which loads its kernels; the next one is recorded.
  if (found == graphs_.end()) {
    enqueue(kind, a, out, pool);
    if (recorded_generation_ == generation()) graphs_[kind];
    return;
  }
  if (!found->second.defined()) found->second = Graph(runtime_, [&] { enqueue(kind, a, out, pool); });
  found->second.launch();
}

void MtpLayer::draft_on_device(std::span<const Request> requests, StatePool& pool,
                               std::span<std::vector<std::int32_t>> drafts) {
  const std::vector<std::size_t> open = begin_drafts(requests, pool);
  if (open.empty()) return;
  const auto sequences = static_cast<std::int64_t>(open.size());
  std::int64_t most = 0;
  chain_.clear();
  for (std::size_t n = 0; n < open.size(); ++n) {
    const Request& request = requests[open[n]];
    batch_.want(batch_.cu_seqlens_on_host()[n + 1] - 1);
    // The first pass moves it to its first draft, whose token comes from there too.
    chain_.add(request.slot, pool.length(request.slot) - 1, std::span(&request.next, 1));
    most = std::max(most, request.most);
  }
  batch_.upload();
  chain_.upload();
  Activations a;
  Outputs out;
  const auto row_bytes = static_cast<std::size_t>(sequences) * sizeof(std::int32_t);
  std::vector<std::int32_t> slots(chain_.slots_on_host().begin(), chain_.slots_on_host().end());
  for (std::int64_t made = 0; made < most; ++made) {
    const bool first = made == 0;
    begin(first ? batch_ : chain_, true);
    lay_out_pass(sequences, a, out);
    if (first) load_kept(requests, open, a.hidden, pool);
    bool ended = false;
    for (std::size_t n = 0; n < open.size() && !first; ++n) {
      if (requests[open[n]].most != made) continue;
      slots[n] = -1;
      ended = true;
    }
    if (ended) runtime_.upload(chain_.slots().data, slots.data(), row_bytes);
    launch({step_.count(), sequences, first}, a, out, pool);
    if (first) end_first_pass(requests, open, pool);
    runtime_.copy(read_.data() + static_cast<std::size_t>(made) * row_bytes, out.tokens.data, row_bytes);
  }
  runtime_.wait();
  const auto* chosen = reinterpret_cast<const std::int32_t*>(read_.data());
  for (std::size_t n = 0; n < open.size(); ++n) {
    for (std::int64_t made = 0; made < requests[open[n]].most; ++made) {
      const std::int32_t token = chosen[static_cast<std::size_t>(made * sequences) + n];
      if (token < 0) break;
      drafts[open[n]].push_back(token);
    }
  }
}

void MtpLayer::plan_store(std::int64_t tokens, std::int64_t sequences, StatePool& pool) {
  batch_.fill(tokens, sequences);
  batch_.upload();
  Activations a;
  Outputs none;
  for (const bool few : {false, true}) {
    begin(batch_, few);
    lay_out_pass(0, a, none);
    store(a, pool);
  }
}

void MtpLayer::plan_drafts(StatePool& pool) {
  batch_.fill(sequences_ * (2 + drafts_), sequences_);
  batch_.upload();
  begin(batch_, true);
  Activations a;
  Outputs out;
  lay_out_pass(sequences_, a, out);
  choose(a, out, pool);
}

}  // namespace thalweg::decode
