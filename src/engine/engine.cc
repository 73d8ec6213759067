#include "thalweg/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "decode/sampler.h"
#include "engine/constraints.h"
#include "engine/scheduler.h"

namespace thalweg {

std::string_view name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEndToken:
      return "end";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

// The engine's thread alone uses the scheduler and the model; the others leave requests and cancellations for it.
struct Engine::Impl {
  Impl(Model&& model_to_run, const EngineOptions& engine_options)
      : model(std::move(model_to_run)), options(engine_options), slots(model), constraints(model, slots) {}

  Model model;
  const EngineOptions options;
  engine::ModelSlots slots;
  std::unique_ptr<engine::Scheduler> scheduler;

  mutable std::mutex mutex;
  std::condition_variable wake;  // of the engine's thread
  std::condition_variable done;  // of drain()
  // Guarded by the mutex.
  std::vector<engine::Accepted> arrived;
  std::vector<RequestId> cancelled;
  EngineStats stats;  // as of the last step, or of the last output since
  std::uint64_t requests = 0;
  std::uint64_t refused = 0;
  RequestId last_id = 0;
  bool idle = true;
  bool draining = false;
  bool cancel_all = false;
  bool stopping = false;

  engine::Constraints constraints;

  std::atomic<bool> interrupted = false;  // there is something to take over
  std::thread thread;

  void check(const Request& request) const;
  void loop();
  void take_over(std::unique_lock<std::mutex>& lock);
};

namespace {

void require(bool condition, std::string_view what, const std::string& expected, const std::string& given) {
  if (!condition) throw Error("Engine", what, expected, given);
}

}  // namespace

void Engine::Impl::check(const Request& request) const {
  const auto size = static_cast<std::int64_t>(request.prompt.size());
  require(size > 0, "prompt", "at least one token", "none");
  require(size < model.context(), "prompt",
          "fewer than " + std::to_string(model.context()) + " tokens (ModelOptions::context)", std::to_string(size));
  const std::int64_t vocabulary = slots.vocabulary();
  for (const std::int32_t token : request.prompt) {
    require(token >= 0 && token < vocabulary, "prompt", "ids from 0 to " + std::to_string(vocabulary - 1),
            std::to_string(token));
  }
  for (const std::int64_t position : request.boundaries) {
    require(position >= 0 && position <= size, "boundaries", "positions from 0 to " + std::to_string(size),
            std::to_string(position));
  }
  decode::check_sampling(request.sampling);
  require(request.max_tokens >= -1, "max_tokens", "0 or more, or -1", std::to_string(request.max_tokens));
  for (const std::string& stop : request.stop)
    require(!stop.empty(), "stop", "texts of at least a byte", "an empty one");
  require(request.stop.empty() || slots.tokenizer() != nullptr, "stop", "a model with a tokenizer", "one without");
  if (request.logprobs) {
    require(*request.logprobs >= 0 && *request.logprobs <= vocabulary, "logprobs",
            "a number from 0 to " + std::to_string(vocabulary), std::to_string(*request.logprobs));
  }
}

void Engine::Impl::take_over(std::unique_lock<std::mutex>& lock) {
  // Under the lock: a request is in the counts of one or the other at any time.
  stats.waiting += static_cast<std::int64_t>(arrived.size());
  for (engine::Accepted& accepted : arrived) scheduler->add(std::move(accepted));
  arrived.clear();
  const std::vector<RequestId> new_cancellations = std::exchange(cancelled, {});
  const bool all = std::exchange(cancel_all, false);
  interrupted = false;
  lock.unlock();
  for (const RequestId id : new_cancellations) scheduler->cancel(id);
  if (all) scheduler->cancel_all();
  lock.lock();
}

void Engine::Impl::loop() {
  std::unique_lock lock(mutex);
  while (true) {
    take_over(lock);
    stats = scheduler->stats();
    idle = scheduler->idle() && arrived.empty();
    if (idle) done.notify_all();
    if (idle && stopping) return;
    if (idle) {
      wake.wait(lock, [&] { return interrupted || stopping; });
      continue;
    }
    lock.unlock();
    scheduler->step([&] { return interrupted.load(std::memory_order_relaxed); });
    lock.lock();
  }
}

Engine::Engine(Model&& model, const EngineOptions& options) {
  require(options.queue >= 0, "queue", "0 or more", std::to_string(options.queue));
  require(options.prompt_share > 0 && options.prompt_share < 1, "prompt_share", "a number above 0 and below 1",
          std::to_string(options.prompt_share));
  require(options.cache_device_bytes >= -1, "cache_device_bytes", "0 or more, or -1",
          std::to_string(options.cache_device_bytes));
  require(options.cache_dir.empty() || options.cache_bytes > 0, "cache_dir",
          "cache_bytes above 0: what lies there passes through memory", "cache_bytes 0");
  impl_ = std::make_unique<Impl>(std::move(model), options);
  try {
    impl_->scheduler = std::make_unique<engine::Scheduler>(impl_->model, impl_->options,
                                                           [impl = impl_.get()](const EngineStats& stats) {
                                                             const std::lock_guard lock(impl->mutex);
                                                             impl->stats = stats;
                                                           });
  } catch (...) {
    model = std::move(impl_->model);
    throw;
  }
  impl_->stats = impl_->scheduler->stats();
  impl_->thread = std::thread([impl = impl_.get()] { impl->loop(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->draining = true;
    impl_->stopping = true;
    impl_->cancel_all = true;
    impl_->interrupted = true;
  }
  impl_->wake.notify_all();
  impl_->thread.join();
}

const Model& Engine::model() const { return impl_->model; }

std::unique_ptr<TokenConstraint> Engine::constraint(const Grammar& grammar, bool after_thoughts) const {
  return impl_->constraints.make(grammar, after_thoughts);
}

std::unique_ptr<TokenConstraint> Engine::thought_budget(std::int64_t tokens,
                                                        std::unique_ptr<TokenConstraint> then) const {
  return impl_->constraints.limit_thoughts(tokens, std::move(then));
}

RequestId Engine::submit(Request request, OnOutput on_output) {
  impl_->check(request);
  require(static_cast<bool>(on_output), "on_output", "a function", "none");
  RequestId id = 0;
  {
    const std::lock_guard lock(impl_->mutex);
    const auto waiting = impl_->stats.waiting + static_cast<std::int64_t>(impl_->arrived.size());
    const std::int64_t free = impl_->slots.slots() - impl_->stats.running;
    if (impl_->draining || waiting >= impl_->options.queue + free) {
      ++impl_->refused;
      if (impl_->draining) throw Refused("Engine", "request", "an engine that goes on", "one that is being stopped");
      throw Refused("Engine", "request", "at most " + std::to_string(impl_->options.queue) + " that wait", "one more");
    }
    id = ++impl_->last_id;
    ++impl_->requests;
    impl_->arrived.push_back({id, std::move(request), std::move(on_output), engine::Clock::now(), false, {}});
    impl_->idle = false;
    impl_->interrupted = true;
  }
  impl_->wake.notify_all();
  return id;
}

void Engine::cancel(RequestId id) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->cancelled.push_back(id);
    impl_->interrupted = true;
  }
  impl_->wake.notify_all();
}

bool Engine::drain(double seconds) {
  std::unique_lock lock(impl_->mutex);
  impl_->draining = true;
  const auto until = engine::Clock::now() + std::chrono::duration_cast<engine::Clock::duration>(
                                                std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e9)));
  if (impl_->done.wait_until(lock, until, [&] { return impl_->idle; })) return true;
  impl_->cancel_all = true;
  impl_->interrupted = true;
  impl_->wake.notify_all();
  impl_->done.wait(lock, [&] { return impl_->idle; });
  return false;
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(impl_->mutex);
  EngineStats stats = impl_->stats;
  stats.waiting += static_cast<std::int64_t>(impl_->arrived.size());
  stats.requests = impl_->requests;
  stats.refused = impl_->refused;
  return stats;
}

}  // namespace thalweg
