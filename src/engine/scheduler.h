#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "engine/disk_cache.h"
#include "engine/model_slots.h"
#include "engine/running.h"
#include "engine/tiered_cache.h"
#include "thalweg/engine.h"

namespace thalweg::engine {

// What runs, and in which order; knows no threads. A step gives every request that generates its next token, and as
// many tokens of prompts as there is time for.
class Scheduler {
 public:
  // `publish` is given the counts before the last output of a request is reported. Throws Error if options.cache_dir
  // cannot be used.
  Scheduler(Model& model, const EngineOptions& options, std::function<void(const EngineStats&)> publish);

  void add(Accepted accepted) { waiting_.push_back(std::move(accepted)); }
  // False if there is no such request, any more.
  bool cancel(RequestId id);
  void cancel_all();

  bool idle() const { return waiting_.empty() && running_.empty(); }
  // `interrupted` says whether requests or cancellations have arrived, which a long run of steps should end for.
  void step(const std::function<bool()>& interrupted);

  // Everything but what is counted where requests are accepted.
  EngineStats stats() const;

 private:
  static constexpr double kMostCredit = 0.25;   // seconds that prompts may save up
  static constexpr double kLongestStall = 0.5;  // seconds that requests may wait while most are prompts

  void admit();
  std::list<Accepted>::iterator most_urgent();
  bool load_from_disk(Accepted& accepted);
  void take_from_disk(Accepted& accepted);
  void wait_for_disk();
  void start(std::list<Accepted>::iterator next);
  std::vector<std::int64_t> checkpoints_of(const Request& request, const TieredCache::Hit& hit) const;

  void generate(std::span<Running* const> generating, std::size_t prompts, const std::function<bool()>& interrupted);
  void generate_one(std::span<Running* const> generating);
  // Runs the tokens that were chosen with drafts of what follows, and takes those that are right.
  void run_drafts(std::span<Running* const> batch, std::span<const SequenceInput> inputs);
  // Whether the draft is the request's next token, which it takes then.
  bool take_draft(Running& running, std::int32_t draft);
  // Many steps without a look at the logits, for a device that works ahead. All of the requests have this `ignore_end`.
  void generate_several(std::span<Running* const> generating, bool ignore_end,
                        const std::function<bool()>& interrupted);
  void take(Running& running, std::int32_t token);

  // At most so many tokens of prompts.
  void run_prompts(std::vector<Running*> prompts, std::int64_t most);
  std::int64_t next_chunk(const Running& running, std::int64_t most) const;
  std::int64_t most_tokens() const;
  std::int64_t affordable_tokens() const;
  void keep(Running& running);
  // Of requests that have ended.
  void keep_answers();

  // Runs new tokens. An error of the run ends the requests whose tokens they were.
  bool run(std::span<Running* const> batch, std::span<const SequenceInput> inputs);
  void fail(std::span<Running* const> batch, const std::string& what);
  void publish() const { publish_(stats()); }
  void report();
  void remove_finished();

  Model& model_;
  ModelSlots slots_;
  EngineOptions options_;
  std::function<void(const EngineStats&)> publish_;
  TieredCache cache_;
  std::unique_ptr<DiskCache> disk_;  // null: none
  std::int64_t checkpoint_spacing_;  // tokens, of those at no boundary
  std::list<Accepted> waiting_;
  std::list<std::unique_ptr<Running>> running_;
  double prompt_credit_ = kMostCredit;   // seconds that prompts may take while others generate; below 0: owed
  double stalled_seconds_ = 0;           // since a request that generates was given a step
  double seconds_per_prompt_token_ = 0;  // measured; 0: nothing yet
  EngineStats stats_;
};

}  // namespace thalweg::engine
