#include "core/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace thalweg {
namespace {

TEST(ThreadPoolThreads, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 5, 16}) {
    for (const std::int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> counts(static_cast<std::size_t>(tasks));
      parallel_for(Stream::cpu(threads), tasks,
                   [&](std::int64_t task, int) { counts[static_cast<std::size_t>(task)].fetch_add(1); });
      for (const auto& count : counts) EXPECT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPoolThreads, WorkersHaveScratchOfTheirOwn) {
  constexpr int kThreads = 4;
  std::vector<std::atomic<int>> busy(kThreads);
  std::atomic<bool> shared{false};
  parallel_for(Stream::cpu(kThreads), 500, [&](std::int64_t, int worker) {
    ASSERT_GE(worker, 0);
    ASSERT_LT(worker, kThreads);
    auto& mine = busy[static_cast<std::size_t>(worker)];
    if (mine.fetch_add(1) != 0) shared = true;
    std::this_thread::yield();
    mine.fetch_sub(1);
  });
  EXPECT_FALSE(shared.load());
}

TEST(ThreadPoolThreads, NestedCallsRunOnTheCaller) {
  std::atomic<int> inner{0};
  parallel_for(Stream::cpu(3), 10, [&](std::int64_t, int) {
    parallel_for(Stream::cpu(3), 10, [&](std::int64_t, int worker) {
      EXPECT_EQ(worker, 0);
      inner.fetch_add(1);
    });
  });
  EXPECT_EQ(inner.load(), 100);
}

TEST(ThreadPoolThreads, CallersDoNotDisturbEachOther) {
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&wrong, caller] {
      for (int round = 0; round < 200; ++round) {
        std::vector<std::int64_t> squares(50);
        parallel_for(Stream::cpu(3), 50,
                     [&](std::int64_t task, int) { squares[static_cast<std::size_t>(task)] = task * task + caller; });
        if (std::accumulate(squares.begin(), squares.end(), std::int64_t{0}) != 40425 + 50 * caller) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

// While one call keeps a thread of the pool busy, another one gets the next.
TEST(ThreadPoolThreads, CallersShareThePool) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  const auto wait_for = [&](const std::atomic<int>& count, int wanted) {
    while (count.load() < wanted && Clock::now() < deadline) std::this_thread::yield();
    return count.load() >= wanted;
  };
  parallel_for(Stream::cpu(3), 3, [](std::int64_t, int) {});  // two helpers
  std::atomic<int> in_first{0};
  std::atomic<int> in_second{0};
  std::atomic<int> finished{0};
  std::atomic<bool> shared{true};
  std::thread first([&] {
    parallel_for(Stream::cpu(2), 2, [&](std::int64_t, int) {
      ++in_first;
      if (!wait_for(finished, 1)) shared = false;
    });
  });
  if (!wait_for(in_first, 2)) shared = false;
  // Both tasks must be under way at once.
  parallel_for(Stream::cpu(3), 2, [&](std::int64_t, int) {
    ++in_second;
    if (!wait_for(in_second, 2)) shared = false;
  });
  ++finished;
  first.join();
  EXPECT_TRUE(shared.load());
}

// More calls than the pool keeps at a time, all within a task at once: those without a slot run by themselves.
TEST(ThreadPoolThreads, TakesAnyNumberOfCallers) {
  using Clock = std::chrono::steady_clock;
  constexpr int kCallers = 70;
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  std::atomic<int> inside{0};
  std::atomic<int> ran{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&] {
      parallel_for(Stream::cpu(2), 3, [&](std::int64_t task, int) {
        if (task == 0) ++inside;
        while (task == 0 && inside.load() < kCallers && Clock::now() < deadline) std::this_thread::yield();
        ++ran;
      });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(inside.load(), kCallers);
  EXPECT_LT(Clock::now(), deadline);
  EXPECT_EQ(ran.load(), 3 * kCallers);
}

struct OwnThreads {
  std::atomic<int> calls{0};
  bool one_by_one = false;

  static void run(void* user, int workers, void (*work)(void* context, int worker), void* context) {
    auto& self = *static_cast<OwnThreads*>(user);
    ++self.calls;
    if (self.one_by_one) {
      for (int i = workers - 1; i >= 0; --i) work(context, i);
      return;
    }
    std::vector<std::thread> threads;
    for (int i = 0; i < workers; ++i) threads.emplace_back(work, context, i);
    for (std::thread& thread : threads) thread.join();
  }
};

TEST(ThreadPoolThreads, TakesTheCallersThreads) {
  for (const bool one_by_one : {false, true}) {
    OwnThreads own;
    own.one_by_one = one_by_one;
    const ThreadPool pool{OwnThreads::run, &own};
    Stream stream = Stream::cpu(4);
    stream.pool = &pool;
    std::vector<std::atomic<int>> counts(100);
    std::atomic<int> strangers{0};
    std::atomic<int> inner{0};
    parallel_for(stream, 100, [&](std::int64_t task, int worker) {
      if (worker < 0 || worker >= 4) ++strangers;
      counts[static_cast<std::size_t>(task)].fetch_add(1);
      parallel_for(stream, 2, [&](std::int64_t, int) { ++inner; });  // within a task: on the same thread
    });
    for (const auto& count : counts) EXPECT_EQ(count.load(), 1);
    EXPECT_EQ(strangers.load(), 0);
    EXPECT_EQ(inner.load(), 200);
    EXPECT_EQ(own.calls.load(), 1);
    parallel_for(stream, 1, [](std::int64_t, int) {});
    EXPECT_EQ(own.calls.load(), 1);  // one task needs no other thread
  }
}

TEST(ThreadPoolThreads, SmallTasksStayOnTheCaller) {
  const Stream stream = Stream::cpu(4);
  const std::thread::id caller = std::this_thread::get_id();
  int done = 0;
  parallel_for(stream, 100, 10.0, [&](std::int64_t, int worker) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(worker, 0);
    ++done;
  });
  EXPECT_EQ(done, 100);
  EXPECT_EQ(useful_threads(stream, 0.0), 1);
  EXPECT_EQ(useful_threads(stream, 2 * min_thread_ns), 2);
  EXPECT_EQ(useful_threads(stream, 1e12), 4);
}

TEST(ThreadPoolThreads, ZeroMeansTheHardwares) {
  EXPECT_GE(thread_count(Stream::cpu()), 1);
  EXPECT_EQ(thread_count(Stream::cpu(3)), 3);
}

}  // namespace
}  // namespace thalweg
