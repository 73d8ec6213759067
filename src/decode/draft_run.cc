// Runs of the model that verify drafts.

#include <chrono>

#include "decode/model_impl.h"
#include "decode/sampler.h"
#include "thalweg/error.h"

namespace thalweg {
namespace {

using Clock = std::chrono::steady_clock;

// While a draft is judged its sequence can be read. What the judge throws leaves it damaged: its state is further on.
class Readable {
 public:
  explicit Readable(Sequence::Impl& sequence) : sequence_(sequence) { sequence_.damaged = false; }
  ~Readable() { sequence_.damaged = true; }
  Readable(const Readable&) = delete;
  Readable& operator=(const Readable&) = delete;

 private:
  Sequence::Impl& sequence_;
};

}  // namespace

void Model::Impl::judge_here(std::span<const decode::DecoderInput> inputs, std::span<Sequence::Impl* const> sequences,
                             std::span<std::int64_t> kept, const AcceptDraft& accept) {
  std::vector<bool> wrong(inputs.size(), false);
  decoder->run_drafts(inputs, *pool, [&](std::size_t i, std::int64_t token, std::span<const float> logits) {
    if (wrong[i]) return;
    Sequence::Impl& sequence = *sequences[i];
    const std::span<const std::int32_t> tokens = inputs[i].tokens;
    sequence.tokens.push_back(tokens[static_cast<std::size_t>(token)]);
    sequence.logits.assign(logits.begin(), logits.end());
    sequence.away = false;
    sequence.chosen.reset();
    kept[i] = token + 1;
    const auto next = static_cast<std::size_t>(token) + 1;
    if (next == tokens.size()) return;
    const Readable readable(sequence);
    wrong[i] = !accept(i, tokens[next]);
  });
}

void Model::Impl::judge_on_device(std::span<const decode::DecoderInput> inputs,
                                  std::span<Sequence::Impl* const> sequences, std::span<const Sampling> sampling,
                                  std::span<std::int64_t> kept, const AcceptDraft& accept) {
  std::vector<decode::RoundInput> round;
  for (std::size_t i = 0; i < inputs.size(); ++i) round.push_back({inputs[i].slot, inputs[i].tokens, sampling[i]});
  const std::span<const std::int32_t> chosen = rounds->run(round);
  std::int64_t first = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Sequence::Impl& sequence = *sequences[i];
    const std::span<const std::int32_t> tokens = inputs[i].tokens;
    const Readable readable(sequence);
    sequence.away = true;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      sequence.tokens.push_back(tokens[t]);
      sequence.chosen = {sampling[i], chosen[static_cast<std::size_t>(first) + t]};
      kept[i] = static_cast<std::int64_t>(t) + 1;
      if (t + 1 < tokens.size() && !accept(i, tokens[t + 1])) break;
    }
    kept_logits->keep(sequence.slot, rounds->logits(first + kept[i] - 1));
    first += static_cast<std::int64_t>(tokens.size());
  }
}

std::vector<std::int64_t> Model::Impl::run_drafts(std::span<const SequenceInput> batch,
                                                  std::span<const Sampling> sampling, const AcceptDraft& accept) {
  std::vector<Sequence*> handles;
  for (const SequenceInput& input : batch) handles.push_back(input.sequence);
  const std::vector<Sequence::Impl*> sequences = sequences_of(handles, "decode");
  const std::vector<decode::DecoderInput> inputs = inputs_of(batch, sequences);
  for (Sequence::Impl* sequence : sequences) sequence->damaged = true;
  std::vector<std::int64_t> kept(inputs.size(), 0);
  bool settled = true;
  for (const Sequence::Impl* sequence : sequences) settled = settled && pool->pending(sequence->slot) == 0;
  std::int64_t drafts = 0;
  std::int64_t accepted = 0;
  const Clock::time_point begin = Clock::now();
  if (sampling.empty()) {
    judge_here(inputs, sequences, kept, accept);
  } else {
    judge_on_device(inputs, sequences, sampling, kept, accept);
  }
  source().require_intact();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto count = static_cast<std::int64_t>(inputs[i].tokens.size());
    if (kept[i] < count) pool->drop(sequences[i]->slot, count - kept[i]);
    drafts += count - 1;
    accepted += kept[i] - 1;
  }
  round_costs.add(static_cast<std::int64_t>(inputs.size()), drafts,
                  std::chrono::duration<double>(Clock::now() - begin).count(), settled);
  ++draft_counts.runs;
  draft_counts.drafts += drafts;
  draft_counts.accepted += accepted;
  for (Sequence::Impl* sequence : sequences) sequence->damaged = false;
  return kept;
}

std::vector<std::int64_t> Model::verify(std::span<const SequenceInput> batch, std::span<const Sampling> sampling,
                                        const AcceptDraft& accept) {
  const auto require = [](bool condition, std::string_view argument, const std::string& expected, std::size_t given) {
    if (!condition) throw Error("verify", argument, expected, std::to_string(given));
  };
  if (impl_->draft == DraftMode::kOff) throw Error("verify", "draft", "a model that was loaded with drafts", "off");
  require(sampling.size() == batch.size(), "sampling", "one for each of " + std::to_string(batch.size()) + " sequences",
          sampling.size());
  const auto most = static_cast<std::size_t>(impl_->options.draft_max);
  std::size_t total = 0;
  bool choose = true;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::size_t count = batch[i].tokens.size();
    require(count >= 1 && count <= 1 + most, "tokens", "1 token and at most " + std::to_string(most) + " drafts",
            count);
    decode::check_sampling(sampling[i]);
    choose = choose && impl_->can_choose(sampling[i]);
    total += count;
  }
  require(total <= static_cast<std::size_t>(round_tokens()), "tokens",
          "at most " + std::to_string(round_tokens()) + " in a round", total);
  const auto chosen = [&](std::size_t i, std::int32_t draft) {
    return batch[i].sequence->impl_->choose(sampling[i]) == draft;
  };
  return impl_->run_drafts(batch, choose ? sampling : std::span<const Sampling>(),
                           accept ? accept : AcceptDraft(chosen));
}

std::int64_t Model::round_tokens() const { return impl_->decoder->round_tokens(); }

void Model::Impl::make_drafts(std::span<const Drafted> batch) {
  std::vector<decode::MtpLayer::Request> requests;
  std::vector<decode::Drafter*> drafters;
  for (const Drafted& drafted : batch) {
    const int slot = drafted.sequence->slot;
    const bool has_layer = draft_by_mtp && !pool->mtp_rows(slot).lost;
    const std::int64_t most =
        drafted.drafter->wanted(drafted.room, static_cast<std::int64_t>(batch.size()), round_costs, has_layer);
    if (most == 0 || !drafted.drafter->by_layer()) {
      drafted.drafter->look_up(most);
      continue;
    }
    requests.push_back({slot, drafted.next, most});
    drafters.push_back(drafted.drafter);
  }
  if (requests.empty()) return;
  const Clock::time_point begin = Clock::now();
  std::vector<std::vector<std::int32_t>> drafts(requests.size());
  decoder->draft(requests, *pool, drafts);
  std::int64_t made = 0;
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    made += static_cast<std::int64_t>(drafts[i].size());
    drafters[i]->take(std::move(drafts[i]));
  }
  round_costs.add_making(made, std::chrono::duration<double>(Clock::now() - begin).count());
}

DraftCounts Model::draft_counts() const { return impl_->draft_counts; }

const std::vector<float>& Sequence::Impl::read_logits() {
  if (away) model->kept_logits->read(slot, logits);
  away = false;
  return logits;
}

void Sequence::Impl::set_logits(std::vector<float> values) {
  logits = std::move(values);
  away = false;
  chosen.reset();
}

std::int32_t Sequence::Impl::choose(const Sampling& sampling, std::span<const std::uint32_t> allowed) {
  if (!chosen || chosen->sampling != sampling) return decode::sample_token(read_logits(), tokens, sampling, allowed);
  if (chosen->token < 0) throw Error("sample", "logits", "numbers", "NaN or infinity");
  return chosen->token;
}

void Sequence::Impl::take_back(std::int64_t count, std::vector<float> logits_before) {
  if (count == 0) return;
  model->pool->drop(slot, count);
  tokens.resize(tokens.size() - static_cast<std::size_t>(count));
  set_logits(std::move(logits_before));
}

void Sequence::Impl::take_back(std::int64_t count, std::int64_t row_before) {
  if (count == 0) return;
  take_back(count, std::vector<float>());
  model->kept_logits->keep(slot, model->rounds->logits(row_before));
  away = true;
}

}  // namespace thalweg
