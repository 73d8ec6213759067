// Runs of the model that verify drafts.

#include <chrono>

#include "decode/model_impl.h"

namespace thalweg {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

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

void Model::Impl::make_drafts(std::span<const Drafted> batch) {
  std::vector<decode::MtpLayer::Request> requests;
  std::vector<decode::Drafter*> drafters;
  for (const Drafted& drafted : batch) {
    const int slot = drafted.sequence->slot;
    const std::int64_t most =
        drafted.drafter->wanted(drafted.room, static_cast<std::int64_t>(batch.size()), round_costs);
    if (most == 0 || !draft_by_mtp || pool->mtp_rows(slot).lost) {
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

void Sequence::Impl::take_back(std::int64_t count, std::vector<float> logits_before) {
  if (count == 0) return;
  model->pool->drop(slot, count);
  tokens.resize(tokens.size() - static_cast<std::size_t>(count));
  logits = std::move(logits_before);
}

}  // namespace thalweg
