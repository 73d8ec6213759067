// Memory that is handed out again, here the host's own.

#include "engine/host_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

namespace thalweg::engine {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20;
constexpr std::size_t kCheckpoint = std::size_t{48} << 20;

class HostPoolOfTwoSizes : public testing::Test {
 protected:
  using Memory = std::shared_ptr<std::byte[]>;

  decode::Runtime runtime_{Device{}, 1, ThreadPool{}, false};
  std::shared_ptr<HostPool> pool_ =
      std::make_shared<HostPool>(runtime_, kBlock, kCheckpoint, 2 * 64 * kBlock + 3 * kCheckpoint);
};

TEST_F(HostPoolOfTwoSizes, HandsOutTheMemoryThatWasGivenBack) {
  EXPECT_EQ(pool_->take(kBlock - 1), nullptr);
  EXPECT_EQ(pool_->take(0), nullptr);
  std::mt19937 random(1);
  std::vector<std::pair<Memory, std::byte>> blocks;
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    if (random() % 3 == 0 && !blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const auto& [memory, value] = blocks.back();
      EXPECT_EQ(memory[0], value);
      EXPECT_EQ(memory[kBlock - 1], value);
      blocks.pop_back();
      continue;
    }
    Memory memory = pool_->take(kBlock);
    if (memory == nullptr) {
      ++refused;
      continue;
    }
    EXPECT_TRUE(pool_->owns(memory.get()));
    const auto value = static_cast<std::byte>(i);
    memory[0] = memory[kBlock - 1] = value;
    blocks.emplace_back(std::move(memory), value);
  }
  EXPECT_GT(refused, 0);
  // What the blocks have is not the other size's.
  std::vector<Memory> checkpoints;
  while (Memory memory = pool_->take(kCheckpoint)) checkpoints.push_back(std::move(memory));
  EXPECT_GE(blocks.size(), 128U);
  EXPECT_LE(blocks.size() * kBlock + checkpoints.size() * kCheckpoint, 2 * 64 * kBlock + 3 * kCheckpoint);
  const std::vector<std::byte> other(16);
  EXPECT_FALSE(pool_->owns(other.data()));
}

TEST_F(HostPoolOfTwoSizes, AnyThreadGivesBack) {
  std::vector<Memory> taken;
  for (int i = 0; i < 64; ++i) taken.push_back(pool_->take(kBlock));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = static_cast<std::size_t>(t); i < taken.size(); i += 4) taken[i].reset();
    });
  }
  for (int i = 0; i < 64; ++i) EXPECT_NE(pool_->take(kBlock), nullptr);
  for (std::thread& thread : threads) thread.join();
}

TEST(HostPool, LivesAsLongAsItsMemory) {
  const decode::Runtime runtime(Device{}, 1, ThreadPool{}, false);
  auto pool = std::make_shared<HostPool>(runtime, kBlock, kCheckpoint, 64 * kBlock);
  std::shared_ptr<std::byte[]> memory = pool->take(kBlock);
  pool.reset();
  memory[kBlock - 1] = std::byte{7};
  memory.reset();
}

}  // namespace
}  // namespace thalweg::engine
