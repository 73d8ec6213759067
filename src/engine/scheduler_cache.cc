// What the scheduler finds of prompts, in memory and on the disk, and what it keeps.

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "engine/scheduler.h"

namespace thalweg::engine {
namespace {

constexpr std::chrono::milliseconds kDiskWait{5};

}  // namespace

// With nothing to run, but not so long that new requests would wait.
void Scheduler::wait_for_disk() {
  const auto loading =
      std::find_if(waiting_.begin(), waiting_.end(), [](const Accepted& accepted) { return accepted.loaded.valid(); });
  if (loading != waiting_.end()) loading->loaded.wait_for(kDiskWait);
}

// Begins to read what the disk has of a prompt and the memory has not; false if there is nothing, or it is here.
bool Scheduler::load_from_disk(Accepted& accepted) {
  if (disk_ == nullptr || std::exchange(accepted.looked_on_disk, true)) return false;
  const std::span<const std::int32_t> prompt = accepted.request.prompt;
  const auto before_last = prompt.first(prompt.size() - 1);
  const std::int64_t tokens = disk_->find(before_last);
  if (tokens <= cache_.find(before_last).tokens) return false;
  accepted.loaded = disk_->load(before_last, tokens);
  return true;
}

void Scheduler::take_from_disk(Accepted& accepted) {
  const Clock::time_point begin = Clock::now();
  try {
    const std::optional<Prefix<HostBytes>> prefix = accepted.loaded.get();
    if (!prefix) return;
    const auto tokens = static_cast<std::size_t>(prefix->tokens);
    cache_.insert(std::span(accepted.request.prompt).first(tokens), *prefix);
    stats_.cache_dir_tokens += tokens;
  } catch (const std::bad_alloc&) {
    cache_.clear();
  }
  stats_.bookkeeping_seconds += seconds_between(begin, Clock::now());
}

// At the end of the prompt, at the ends of messages, where another text diverges from this one, and on a grid. A state
// that is not far from the next is left out, but for the last two messages' ends, which are where a conversation
// continues and where its last message is edited.
std::vector<std::int64_t> Scheduler::checkpoints_of(const Request& request, const TieredCache::Hit& hit) const {
  const auto size = static_cast<std::int64_t>(request.prompt.size());
  std::vector<std::int64_t> positions = {whole_blocks(size), hit.known};
  std::vector<std::int64_t> ends = request.boundaries;
  std::sort(ends.rbegin(), ends.rend());
  const std::int64_t least_distance = std::max(kBlock, whole_blocks(checkpoint_spacing_ / 4));
  std::int64_t last = size;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const std::int64_t position = whole_blocks(ends[i]);
    if (i >= 2 && last - position < least_distance) continue;
    positions.push_back(position);
    last = position;
  }
  for (std::int64_t at = checkpoint_spacing_; at < size; at += checkpoint_spacing_) positions.push_back(at);
  std::erase_if(positions, [&](std::int64_t position) { return position <= hit.tokens; });
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

// The cache is a help: without memory for it, requests run all the same.
void Scheduler::keep(Running& running) {
  const Clock::time_point begin = Clock::now();
  const Sequence& sequence = running.sequence();
  try {
    std::optional<Prefix<HostBytes>> on_host = cache_.keep(sequence, disk_ != nullptr);
    if (on_host) disk_->store(sequence.tokens(), std::move(*on_host));
  } catch (const std::bad_alloc&) {
    cache_.clear();
  } catch (const Error&) {  // a rank is lost: the next run says so
    cache_.clear();
  }
  stats_.bookkeeping_seconds += seconds_between(begin, Clock::now());
}

// The state at the end of an answer differs by rounding from that of a prompt with the same text: a decode step and a
// chunk sum in different orders. So no prompt continues from it unless the options allow it.
void Scheduler::keep_answers() {
  if (!options_.cache_answers || !cache_.enabled()) return;
  for (const std::unique_ptr<Running>& running : running_) {
    const bool ended = running->finished() && running->reason() != FinishReason::kError;
    if (ended && running->generated() > 0) keep(*running);
  }
}

}  // namespace thalweg::engine
