#include "engine/scheduler.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

namespace thalweg::engine {
namespace {

// A prompt that has waited for a second goes before one that is this many tokens shorter.
constexpr double kTokensPerSecondWaited = 1000;
// A coarse grid of checkpoints, where nothing indicates which positions come again.
constexpr std::int64_t kLeastSpacing = 512;
constexpr std::int64_t kMostSpacing = 8192;
// Seconds of steps on a device, which works ahead, before waiting prompts get their share. Each turn costs one look at
// the logits.
constexpr double kLongestTurn = 0.15;

bool is_ready(const DiskCache::Loaded& loaded) {
  return loaded.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

// A checkpoint takes about as much memory as the keys and values between two.
std::int64_t spacing_of(const ModelSlots& slots) {
  const auto block = static_cast<std::int64_t>(slots.block_bytes());
  const std::int64_t tokens =
      block == 0 ? kMostSpacing : static_cast<std::int64_t>(slots.checkpoint_bytes()) / block * kBlock;
  return whole_blocks(std::clamp(tokens, kLeastSpacing, kMostSpacing));
}

// By default a quarter of what the model leaves free.
std::uint64_t device_budget(const ModelSlots& slots, const EngineOptions& options) {
  if (!slots.has_pages()) return 0;
  if (options.cache_device_bytes >= 0) return static_cast<std::uint64_t>(options.cache_device_bytes);
  return slots.free_device_memory() / 4;
}

// What a constraint throws ends its request.
template <class Body>
void in_request(Running& running, const Body& body) {
  if (running.finished()) return;
  try {
    body();
  } catch (const std::exception& error) {
    running.finish(FinishReason::kError, error.what());
  }
}

// Of a request that never ran.
void report_unrun(const Accepted& accepted, FinishReason reason, const std::string& error = {}) {
  Output output;
  output.finish = reason;
  output.error = error;
  output.usage.prompt_tokens = static_cast<std::int64_t>(accepted.request.prompt.size());
  output.usage.queue_seconds = seconds_between(accepted.since, Clock::now());
  try {
    accepted.on_output(output);
  } catch (...) {  // it has ended already
    return;
  }
}

// What the request adds to the counts of those that have ended.
void count(const Running& running, EngineStats& stats) {
  switch (running.reason()) {
    case FinishReason::kError:
      ++stats.failed;
      break;
    case FinishReason::kCancelled:
      ++stats.cancelled;
      break;
    default:
      ++stats.finished;
  }
}

}  // namespace

Scheduler::Scheduler(Model& model, const EngineOptions& options, std::function<void(const EngineStats&)> publish)
    : model_(model),
      slots_(model),
      options_(options),
      publish_(std::move(publish)),
      cache_(slots_, {device_budget(slots_, options), options.cache_bytes}),
      checkpoint_spacing_(spacing_of(slots_)) {
  if (options.cache_dir.empty()) return;
  const EntryShape shape{slots_.key(options.cache_answers), slots_.block_bytes(), slots_.checkpoint_bytes()};
  disk_ = std::make_unique<DiskCache>(options.cache_dir, shape, options.cache_dir_bytes);
}

bool Scheduler::cancel(RequestId id) {
  const auto waiting =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const Accepted& accepted) { return accepted.id == id; });
  if (waiting != waiting_.end()) {
    const Accepted accepted = std::move(*waiting);
    waiting_.erase(waiting);
    ++stats_.cancelled;
    publish();
    report_unrun(accepted, FinishReason::kCancelled);
    return true;
  }
  for (const std::unique_ptr<Running>& running : running_) {
    if (running->id() != id) continue;
    running->finish(FinishReason::kCancelled);
    report();
    keep_answers();
    remove_finished();
    return true;
  }
  return false;
}

// The end of the engine, mostly: it does not wait until all that they have is kept.
void Scheduler::cancel_all() {
  while (!waiting_.empty()) cancel(waiting_.front().id);
  for (const std::unique_ptr<Running>& running : running_) running->finish(FinishReason::kCancelled);
  report();
  remove_finished();
}

void Scheduler::step(const std::function<bool()>& interrupted) {
  admit();
  if (running_.empty()) return wait_for_disk();
  std::vector<Running*> generating;
  std::vector<Running*> prompts;
  for (const std::unique_ptr<Running>& running : running_) {
    (running->has_prompt() ? generating : prompts).push_back(running.get());
  }
  // While most requests have not begun to generate, steps of the few that do would be small ones.
  const bool prompts_first = prompts.size() > generating.size() && stalled_seconds_ < kLongestStall;
  if (!generating.empty() && !prompts_first) {
    generate(generating, prompts.size(), interrupted);
    stalled_seconds_ = 0;
  }
  if (!prompts.empty()) {
    const Clock::time_point begin = Clock::now();
    const bool limited = !generating.empty() && !prompts_first;
    run_prompts(prompts, limited ? affordable_tokens() : most_tokens());
    const double seconds = seconds_between(begin, Clock::now());
    if (limited) prompt_credit_ -= seconds;
    if (prompts_first && !generating.empty()) stalled_seconds_ += seconds;
  }
  report();
  keep_answers();
  remove_finished();
}

// Of those that have nothing on the disk to wait for: short prompts first, and those that have waited long.
std::list<Accepted>::iterator Scheduler::most_urgent() {
  const Clock::time_point now = Clock::now();
  const auto urgency = [&](const Accepted& accepted) {
    return static_cast<double>(accepted.request.prompt.size()) -
           kTokensPerSecondWaited * seconds_between(accepted.since, now);
  };
  auto most = waiting_.end();
  for (auto at = waiting_.begin(); at != waiting_.end(); ++at) {
    if (at->loaded.valid()) continue;
    if (most == waiting_.end() || urgency(*at) < urgency(*most)) most = at;
  }
  return most;
}

void Scheduler::admit() {
  const auto slots = static_cast<std::size_t>(slots_.slots());
  std::size_t loading = 0;  // each has a slot in store
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto next = at++;
    if (!next->loaded.valid()) continue;
    if (running_.size() < slots && is_ready(next->loaded)) {
      take_from_disk(*next);
      start(next);
    } else {
      ++loading;
    }
  }
  while (running_.size() + loading < slots) {
    const auto next = most_urgent();
    if (next == waiting_.end()) break;
    if (load_from_disk(*next)) {
      ++loading;
    } else {
      start(next);
    }
  }
}

void Scheduler::start(std::list<Accepted>::iterator next) {
  Accepted accepted = std::move(*next);
  waiting_.erase(next);
  Sequence sequence;
  const Clock::time_point begin = Clock::now();
  // The logits after the prompt are not in the cache: at least one token is left to run.
  const std::span<const std::int32_t> prompt = accepted.request.prompt;
  const TieredCache::Hit hit = cache_.find(prompt.first(prompt.size() - 1));
  try {
    sequence = model_.start();
    if (hit.tokens > 0) cache_.restore(sequence, prompt, hit);
  } catch (const Error& error) {  // a rank is lost
    ++stats_.failed;
    publish();
    report_unrun(accepted, FinishReason::kError, error.what());
    return;
  }
  std::vector<std::int64_t> checkpoints;
  if (cache_.enabled()) checkpoints = checkpoints_of(accepted.request, hit);
  auto running = std::make_unique<Running>(std::move(accepted), std::move(sequence), slots_.tokenizer());
  running->set_checkpoints(std::move(checkpoints));
  if (slots_.draft() != DraftMode::kOff) running->begin_drafts(slots_.draft(), slots_.draft_max());
  stats_.prompt_tokens += static_cast<std::uint64_t>(running->prompt_size());
  stats_.prompt_tokens_cached += static_cast<std::uint64_t>(hit.tokens);
  stats_.bookkeeping_seconds += seconds_between(begin, Clock::now());
  running_.push_back(std::move(running));
}

void Scheduler::generate(std::span<Running* const> generating, std::size_t prompts,
                         const std::function<bool()>& interrupted) {
  const Clock::time_point begin = Clock::now();
  const bool ignore_end = generating.front()->request().ignore_end;
  const bool on_device = std::all_of(generating.begin(), generating.end(), [&](const Running* running) {
    const bool chosen_there = !running->is_constrained() || slots_.constrains_on_device();
    return !running->needs_logits() && chosen_there && running->request().ignore_end == ignore_end;
  });
  if (on_device && !slots_.on_host() && slots_.draft() == DraftMode::kOff) {
    generate_several(generating, ignore_end, [&] {
      return interrupted() || (prompts > 0 && seconds_between(begin, Clock::now()) > kLongestTurn);
    });
  } else {
    generate_one(generating);
  }
  const double seconds = seconds_between(begin, Clock::now());
  // Every request has the same right to time; prompts together at least the share that the options say.
  const auto of_prompts = static_cast<double>(prompts) / static_cast<double>(prompts + generating.size());
  const double share = std::max(options_.prompt_share, of_prompts);
  prompt_credit_ = std::min(kMostCredit, prompt_credit_ + seconds * share / (1 - share));
}

void Scheduler::take(Running& running, std::int32_t token) {
  running.take(token, model_.is_end_token(token), model_.context());
}

void Scheduler::generate_one(std::span<Running* const> generating) {
  std::vector<std::int32_t> tokens(generating.size());
  for (std::size_t i = 0; i < generating.size(); ++i) {
    Running& running = *generating[i];
    in_request(running, [&] {
      if (running.tokens_left() <= 0) {
        running.finish(FinishReason::kLength);
      } else {
        tokens[i] = running.choose(slots_);
        take(running, tokens[i]);
      }
    });
  }
  // The tokens can be read while they run.
  report();
  std::vector<Running*> batch;
  std::vector<SequenceInput> inputs;
  for (std::size_t i = 0; i < generating.size(); ++i) {
    if (generating[i]->finished()) continue;
    batch.push_back(generating[i]);
    inputs.push_back({&generating[i]->sequence(), std::span(&tokens[i], 1)});
  }
  if (batch.empty()) return;
  if (slots_.draft() != DraftMode::kOff) {
    run_drafts(batch, inputs);
  } else {
    run(batch, inputs);
  }
}

void Scheduler::generate_several(std::span<Running* const> generating, bool ignore_end,
                                 const std::function<bool()>& interrupted) {
  std::vector<Running*> batch;
  std::vector<Sequence*> sequences;
  std::vector<Sampling> sampling;
  std::int64_t most = 1 << 20;
  for (Running* running : generating) {
    if (running->tokens_left() <= 0) {
      running->finish(FinishReason::kLength);
      continue;
    }
    batch.push_back(running);
    sequences.push_back(&running->sequence());
    sampling.push_back(running->request().sampling);
    most = std::min(most, running->tokens_left());
  }
  if (batch.empty()) return;
  const Clock::time_point begin = Clock::now();
  const auto on_tokens = [&](std::span<const std::int32_t> tokens) {
    ++stats_.steps;
    bool goes_on = !interrupted();
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (tokens[i] < 0) continue;
      ++stats_.step_sequences;
      in_request(*batch[i], [&] { batch[i]->take(tokens[i], false, model_.context()); });
    }
    const auto finished = [](const Running* running) { return running->finished(); };
    if (std::any_of(batch.begin(), batch.end(), finished)) publish();
    for (Running* running : batch) running->report();
    goes_on = goes_on && std::none_of(batch.begin(), batch.end(), finished);  // also where a callback has thrown
    // One that ended before is reported when the others stop.
    return goes_on && std::none_of(tokens.begin(), tokens.end(), [](std::int32_t token) { return token < 0; });
  };
  ModelSlots::AllowedOf allowed;
  if (std::any_of(batch.begin(), batch.end(), [](const Running* running) { return running->is_constrained(); })) {
    allowed = [&](std::size_t i) {
      std::span<const std::uint32_t> mask;
      in_request(*batch[i], [&] { mask = batch[i]->allowed(slots_); });
      return mask;
    };
  }
  try {
    const std::vector<StopReason> reasons = slots_.decode(sequences, sampling, most, allowed, on_tokens, ignore_end);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (reasons[i] == StopReason::kEndToken) batch[i]->finish(FinishReason::kEndToken);
      if (reasons[i] == StopReason::kContext) batch[i]->finish(FinishReason::kLength);
    }
  } catch (const std::exception& error) {
    fail(batch, error.what());
  }
  stats_.step_seconds += seconds_between(begin, Clock::now());
}

std::int64_t Scheduler::most_tokens() const {
  return std::max<std::int64_t>(kBlock, whole_blocks(model_.prefill_chunk()));
}

std::int64_t Scheduler::affordable_tokens() const {
  if (seconds_per_prompt_token_ == 0) return most_tokens();
  if (prompt_credit_ <= 0) return 0;
  const auto tokens = static_cast<std::int64_t>(prompt_credit_ / seconds_per_prompt_token_);
  return std::clamp(whole_blocks(tokens), kBlock, most_tokens());
}

// Whole blocks up to the next checkpoint or the last block's end, or what is left after it: cut in this way, a prompt
// gives the same bits wherever it was begun. After an answer the block that it ended in comes first.
std::int64_t Scheduler::next_chunk(const Running& running, std::int64_t most) const {
  const std::int64_t begin = running.computed();
  const std::int64_t blocks_end = whole_blocks(running.prompt_size());
  if (begin >= blocks_end) return running.prompt_size() - begin;
  if (begin % kBlock != 0) return kBlock - begin % kBlock;
  const std::int64_t end = std::min(blocks_end, running.next_checkpoint());
  return std::min(end - begin, std::max(kBlock, whole_blocks(most)));
}

void Scheduler::run_prompts(std::vector<Running*> prompts, std::int64_t most) {
  if (most == 0) return;
  const Clock::time_point now = Clock::now();
  const auto urgency = [&](const Running* running) {
    return static_cast<double>(running->prompt_size() - running->computed()) -
           kTokensPerSecondWaited * seconds_between(running->since(), now);
  };
  std::stable_sort(prompts.begin(), prompts.end(),
                   [&](const Running* a, const Running* b) { return urgency(a) < urgency(b); });

  std::vector<Running*> batch;
  std::vector<SequenceInput> inputs;
  std::int64_t total = 0;
  for (Running* running : prompts) {
    const std::int64_t chunk = next_chunk(*running, most - total);
    if (!batch.empty() && total + chunk > most) break;
    const std::span<const std::int32_t> tokens = running->request().prompt;
    batch.push_back(running);
    inputs.push_back({&running->sequence(),
                      tokens.subspan(static_cast<std::size_t>(running->computed()), static_cast<std::size_t>(chunk))});
    total += chunk;
  }
  const Clock::time_point begin = Clock::now();
  if (!run(batch, inputs)) return;
  if (total >= kBlock) {
    const double each = seconds_between(begin, Clock::now()) / static_cast<double>(total);
    seconds_per_prompt_token_ = seconds_per_prompt_token_ == 0 ? each : 0.8 * seconds_per_prompt_token_ + 0.2 * each;
  }
  stats_.prompt_tokens_computed += static_cast<std::uint64_t>(total);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    batch[i]->advance(static_cast<std::int64_t>(inputs[i].tokens.size()));
    if (batch[i]->is_at_checkpoint()) keep(*batch[i]);
  }
}

bool Scheduler::run(std::span<Running* const> batch, std::span<const SequenceInput> inputs) {
  const Clock::time_point begin = Clock::now();
  try {
    model_.prefill(inputs);
  } catch (const std::exception& error) {
    fail(batch, error.what());
    return false;
  }
  ++stats_.steps;
  stats_.step_sequences += batch.size();
  stats_.step_seconds += seconds_between(begin, Clock::now());
  return true;
}

void Scheduler::fail(std::span<Running* const> batch, const std::string& what) {
  for (Running* running : batch) running->finish(FinishReason::kError, what);
}

void Scheduler::report() {
  const auto is_last = [](const std::unique_ptr<Running>& running) { return running->finished(); };
  if (std::any_of(running_.begin(), running_.end(), is_last)) publish();
  for (const std::unique_ptr<Running>& running : running_) running->report();
}

void Scheduler::remove_finished() {
  for (auto at = running_.begin(); at != running_.end();) {
    const Running& running = **at;
    if (!running.finished()) {
      ++at;
      continue;
    }
    stats_.generated_tokens += static_cast<std::uint64_t>(running.generated());
    count(running, stats_);
    at = running_.erase(at);
  }
}

EngineStats Scheduler::stats() const {
  EngineStats stats = stats_;
  stats.waiting = static_cast<std::int64_t>(waiting_.size());
  for (const std::unique_ptr<Running>& running : running_) {
    stats.generated_tokens += static_cast<std::uint64_t>(running->generated());
    if (running->finished()) {
      count(*running, stats);
    } else {
      ++stats.running;
    }
  }
  stats.cache_bytes = cache_.host_bytes();
  stats.cache_device_bytes = cache_.device_bytes();
  stats.cache_device_budget = cache_.device_budget();
  stats.cache_checkpoints = cache_.checkpoints();
  stats.cache_evictions = cache_.evictions();
  if (disk_ != nullptr) {
    const DiskCache::Stats disk = disk_->stats();
    stats.cache_dir_bytes = disk.bytes;
    stats.cache_dir_checkpoints = disk.checkpoints;
    stats.cache_dir_evictions = disk.evictions;
    stats.cache_dir_failures = disk.failures;
  }
  return stats;
}

}  // namespace thalweg::engine
