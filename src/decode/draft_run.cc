// Runs of the model that verify drafts.

#include <chrono>

#include "decode/model_impl.h"

namespace thalweg {

void Model::Impl::run_drafts(std::span<const SequenceInput> batch, const AcceptDraft& accept) {
  std::vector<Sequence*> handles;
  for (const SequenceInput& input : batch) handles.push_back(input.sequence);
  const std::vector<Sequence::Impl*> sequences = sequences_of(handles, "decode");
  const std::vector<decode::DecoderInput> inputs = inputs_of(batch, sequences);
  for (Sequence::Impl* sequence : sequences) sequence->damaged = true;
  std::vector<std::int64_t> kept(inputs.size(), 0);
  std::vector<bool> wrong(inputs.size(), false);
  std::int64_t drafts = 0;
  std::int64_t accepted = 0;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  decoder->run_drafts(inputs, *pool, [&](std::size_t i, std::int64_t token, std::span<const float> logits) {
    if (wrong[i]) return;
    Sequence::Impl& sequence = *sequences[i];
    const std::span<const std::int32_t> tokens = inputs[i].tokens;
    sequence.tokens.push_back(tokens[static_cast<std::size_t>(token)]);
    sequence.logits.assign(logits.begin(), logits.end());
    kept[i] = token + 1;
    const auto next = static_cast<std::size_t>(token) + 1;
    if (next == tokens.size()) return;
    sequence.damaged = false;
    wrong[i] = !accept(i, tokens[next]);
    sequence.damaged = true;
  });
  source().require_intact();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto count = static_cast<std::int64_t>(inputs[i].tokens.size());
    if (kept[i] < count) pool->drop(sequences[i]->slot, count - kept[i]);
    drafts += count - 1;
    accepted += kept[i] - 1;
  }
  round_costs.add(static_cast<std::int64_t>(inputs.size()), drafts,
                  std::chrono::duration<double>(Clock::now() - begin).count());
  ++draft_counts.runs;
  draft_counts.drafts += drafts;
  draft_counts.accepted += accepted;
  for (Sequence::Impl* sequence : sequences) sequence->damaged = false;
}

DraftCounts Model::draft_counts() const { return impl_->draft_counts; }

void Sequence::Impl::take_back(std::int64_t count, std::vector<float> logits_before) {
  if (count == 0) return;
  model->pool->drop(slot, count);
  tokens.resize(tokens.size() - static_cast<std::size_t>(count));
  logits = std::move(logits_before);
}

}  // namespace thalweg
