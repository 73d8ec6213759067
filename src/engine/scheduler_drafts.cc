// The scheduler's rounds with drafts.

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/scheduler.h"

namespace thalweg::engine {

bool Scheduler::take_draft(Running& running, std::int32_t draft) {
  if (running.finished()) return false;
  try {
    // An end token is not run.
    if (running.choose(slots_) != draft || (model_.is_end_token(draft) && !running.request().ignore_end)) return false;
    take(running, draft);
  } catch (const std::exception& error) {
    running.finish(FinishReason::kError, error.what());
    return false;
  }
  return true;
}

void Scheduler::run_drafts(std::span<Running* const> batch, std::span<const SequenceInput> inputs) {
  const auto count = static_cast<std::int64_t>(batch.size());
  const std::int64_t most = (model_.round_tokens() - count) / count;
  std::vector<ModelSlots::Drafted> drafted;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::int64_t room = std::min(most, batch[i]->room(model_.context()));
    drafted.push_back({inputs[i].sequence, inputs[i].tokens.front(), room, &batch[i]->drafter()});
  }
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<SequenceInput> with_drafts;
  std::vector<Sampling> sampling;
  for (const Running* running : batch) {
    const bool plain = !running->needs_logits() && !running->is_constrained();
    if (plain && slots_.can_choose(running->request().sampling)) {
      sampling.push_back(running->request().sampling);
    }
  }
  if (sampling.size() < batch.size()) sampling.clear();
  std::vector<std::int64_t> accepted(batch.size(), 0);
  const Clock::time_point begin = Clock::now();
  try {
    slots_.make_drafts(drafted);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::span<const std::int32_t> drafts = batch[i]->drafter().drafts();
      tokens.emplace_back(inputs[i].tokens.begin(), inputs[i].tokens.end());
      tokens.back().insert(tokens.back().end(), drafts.begin(), drafts.end());
    }
    for (std::size_t i = 0; i < batch.size(); ++i) with_drafts.push_back({inputs[i].sequence, tokens[i]});
    slots_.run_drafts(with_drafts, sampling, [&](std::size_t i, std::int32_t draft) {
      const bool right = take_draft(*batch[i], draft);
      accepted[i] += right ? 1 : 0;
      return right;
    });
  } catch (const std::exception& error) {
    fail(batch, error.what());
    return;
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const auto drafts = static_cast<std::int64_t>(tokens[i].size()) - 1;
    batch[i]->judge(drafts, accepted[i], count, slots_.round_costs());
    stats_.draft_tokens += static_cast<std::uint64_t>(drafts);
    stats_.accepted_tokens += static_cast<std::uint64_t>(accepted[i]);
  }
  ++stats_.steps;
  stats_.step_sequences += batch.size();
  stats_.step_seconds += seconds_between(begin, Clock::now());
}

}  // namespace thalweg::engine
