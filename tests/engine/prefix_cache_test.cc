// The prefix cache against a list of what was inserted.

#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace thalweg::engine {
namespace {

constexpr std::size_t kBlockBytes = 48;
constexpr std::size_t kCheckpointBytes = 200;
using Cache = PrefixCache<HostBytes>;
using Text = std::vector<std::int32_t>;

// What a model would leave there: a function of all tokens up to `end`.
std::uint64_t content_of(const Text& text, std::size_t end, std::uint64_t seed) {
  std::uint64_t hash = 1469598103934665603U + seed;
  for (std::size_t i = 0; i < end; ++i) hash = (hash ^ static_cast<std::uint64_t>(text[i])) * 1099511628211U;
  return hash;
}

HostBytes filled(std::size_t bytes, std::uint64_t value) {
  std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
  for (std::size_t i = 0; i < bytes; ++i) memory[i] = static_cast<std::byte>(value >> i % 8 * 8);
  return memory;
}

bool holds(const HostBytes& memory, std::size_t bytes, std::uint64_t value) {
  return std::memcmp(memory.get(), filled(bytes, value).get(), bytes) == 0;
}

bool insert(Cache& cache, const Text& text) {
  return cache.insert(
      text,
      [&](std::int64_t first, std::int64_t count) {
        return filled(kBlockBytes, content_of(text, static_cast<std::size_t>(first + count), 0));
      },
      [&] { return filled(kCheckpointBytes, content_of(text, text.size(), 1)); });
}

std::size_t blocks_of(std::size_t tokens) { return (tokens + kBlock - 1) / kBlock; }

// Every other one ends within a block.
Text random_text(std::mt19937& random, std::size_t most_blocks, std::uint32_t kinds) {
  Text text;
  const std::size_t blocks = 1 + random() % most_blocks;
  for (std::size_t b = 0; b < blocks; ++b) {
    text.insert(text.end(), kBlock, static_cast<std::int32_t>(random() % kinds));
  }
  if (random() % 2 == 0) text.resize(text.size() - random() % kBlock);
  return text;
}

void check(const Cache::Hit& hit, const Text& text) {
  ASSERT_LE(static_cast<std::size_t>(hit.tokens), text.size());
  ASSERT_EQ(hit.prefix.tokens, hit.tokens);
  ASSERT_EQ(hit.prefix.blocks.size(), blocks_of(static_cast<std::size_t>(hit.tokens)));
  EXPECT_GE(hit.known, hit.tokens / kBlock * kBlock);
  for (std::size_t i = 0; i < hit.prefix.blocks.size(); ++i) {
    const auto end = std::min((i + 1) * kBlock, static_cast<std::size_t>(hit.tokens));
    EXPECT_TRUE(holds(hit.prefix.blocks[i], kBlockBytes, content_of(text, end, 0)));
  }
  if (hit.tokens > 0) {
    EXPECT_TRUE(
        holds(hit.prefix.checkpoint, kCheckpointBytes, content_of(text, static_cast<std::size_t>(hit.tokens), 1)));
  }
}

Text blocks_of(std::initializer_list<int> values) {
  Text text;
  for (const int value : values) text.insert(text.end(), kBlock, value);
  return text;
}

TEST(PrefixCache, RandomTextsAgainstAList) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    Cache cache(kBlockBytes, kCheckpointBytes, std::uint64_t{1} << 30);
    std::vector<Text> inserted;
    for (int i = 0; i < 200; ++i) {
      Text text = random_text(random, 6, 3);
      if (random() % 2 == 0) {
        EXPECT_TRUE(insert(cache, text));
        inserted.push_back(text);
      }
      text.resize(text.size() + random() % kBlock, 1);
      const Cache::Hit hit = cache.find(text);
      check(hit, text);
      std::size_t longest = 0;
      std::size_t known = 0;
      for (const Text& other : inserted) {
        const auto parted = std::mismatch(other.begin(), other.end(), text.begin(), text.end()).first;
        const auto equal = static_cast<std::size_t>(parted - other.begin());
        known = std::max(known, equal / kBlock * kBlock);
        if (equal == other.size()) longest = std::max(longest, equal);
      }
      EXPECT_EQ(hit.tokens, static_cast<std::int64_t>(longest));
      EXPECT_EQ(hit.known, static_cast<std::int64_t>(known));
    }
    cache.clear();
    EXPECT_EQ(cache.bytes(), 0U);
    EXPECT_EQ(cache.checkpoints(), 0U);
  }
}

TEST(PrefixCache, StaysWithinItsBudgetAndTrue) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const std::uint64_t budget = 1000 + random() % 3000;
    Cache cache(kBlockBytes, kCheckpointBytes, budget);
    for (int i = 0; i < 1000; ++i) {
      const Text text = random_text(random, 30, 2);
      const bool fits = blocks_of(text.size()) * kBlockBytes + kCheckpointBytes <= budget;
      EXPECT_EQ(insert(cache, text), fits);
      EXPECT_LE(cache.bytes(), budget);
      const Cache::Hit hit = cache.find(text);
      check(hit, text);
      if (fits) {
        EXPECT_EQ(hit.tokens, static_cast<std::int64_t>(text.size()));
      }
    }
    EXPECT_GT(cache.evictions(), 0U);
    cache.clear();
    EXPECT_EQ(cache.bytes(), 0U);
  }
}

// As a device's memory and the host's: together they forget nothing.
TEST(PrefixCache, WhatIsDroppedIsReportedWhole) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    Cache second(kBlockBytes, kCheckpointBytes, std::uint64_t{1} << 30);
    std::uint64_t reported = 0;
    Cache first(kBlockBytes, kCheckpointBytes, 1000 + random() % 3000,
                [&](std::span<const std::int32_t> text, const Prefix<HostBytes>& prefix) {
                  EXPECT_TRUE(second.insert(text, prefix));
                  ++reported;
                });
    std::vector<Text> inserted;
    for (int i = 0; i < 300; ++i) {
      const Text text = random_text(random, 6, 3);
      if (insert(first, text)) inserted.push_back(text);
      const Text& known = inserted[random() % inserted.size()];
      const Cache::Hit here = first.find(known);
      const Cache::Hit there = second.find(known);
      check(here, known);
      check(there, known);
      EXPECT_EQ(std::max(here.tokens, there.tokens), static_cast<std::int64_t>(known.size()));
    }
    EXPECT_EQ(reported, first.evictions());
    EXPECT_GT(reported, 0U);
  }
}

TEST(PrefixCache, DropsWhatWasUsedLongestAgo) {
  Cache cache(kBlockBytes, kCheckpointBytes, 3 * (kBlockBytes + kCheckpointBytes));
  const Text a = blocks_of({1});
  const Text b = blocks_of({2});
  const Text c = blocks_of({3});
  for (const Text& text : {a, b, c}) insert(cache, text);
  EXPECT_EQ(cache.find(a).tokens, kBlock);
  insert(cache, blocks_of({4}));
  EXPECT_EQ(cache.find(a).tokens, kBlock);
  insert(cache, blocks_of({5}));
  EXPECT_EQ(cache.find(a).tokens, kBlock);
  EXPECT_EQ(cache.find(b).tokens, 0);
  EXPECT_EQ(cache.find(c).tokens, 0);
}

TEST(PrefixCache, DropsWhatSavesLittleBeforeWhatSavesMuch) {
  Cache cache(kBlockBytes, kCheckpointBytes, 8 * kBlockBytes + 3 * kCheckpointBytes);
  const Text all = blocks_of({1, 2, 3, 4, 5, 6, 7});
  const Text most = blocks_of({1, 2, 3, 4, 5, 6});
  insert(cache, most);
  insert(cache, all);  // saves a block more
  insert(cache, blocks_of({8}));
  insert(cache, blocks_of({9}));
  EXPECT_EQ(cache.find(all).tokens, static_cast<std::int64_t>(most.size()));
}

TEST(PrefixCache, TextsEndWithinABlock) {
  Cache cache(kBlockBytes, kCheckpointBytes, 1 << 20);
  Text answer = blocks_of({1, 2});
  answer.resize(100);
  Text longer = answer;
  longer.resize(110, 2);
  insert(cache, answer);
  insert(cache, longer);
  EXPECT_EQ(cache.bytes(), 3 * kBlockBytes + 2 * kCheckpointBytes);
  Text text = longer;
  EXPECT_EQ(cache.find(text).tokens, 110);
  text.resize(300, 2);
  EXPECT_EQ(cache.find(text).tokens, 110);
  EXPECT_EQ(cache.find(text).known, kBlock);
  text[109] = 3;
  EXPECT_EQ(cache.find(text).tokens, 100);
  check(cache.find(text), text);
  text[99] = 3;
  EXPECT_EQ(cache.find(text).tokens, 0);
  EXPECT_EQ(cache.find(std::span(longer).first(99)).tokens, 0);
  // A whole block of the same beginning is another one.
  insert(cache, blocks_of({1, 2}));
  EXPECT_EQ(cache.find(longer).tokens, 110);
  EXPECT_EQ(cache.find(blocks_of({1, 2, 2})).tokens, 2 * kBlock);
}

TEST(PrefixCache, KeepsNothingOfAnInsertionThatFailed) {
  Cache cache(kBlockBytes, kCheckpointBytes, 1 << 20);
  insert(cache, blocks_of({1}));
  const std::uint64_t before = cache.bytes();
  const Text text = blocks_of({1, 2, 3});
  EXPECT_THROW(
      cache.insert(
          text, [](std::int64_t, std::int64_t) { return HostBytes(); }, []() -> HostBytes { throw std::bad_alloc(); }),
      std::bad_alloc);
  EXPECT_EQ(cache.bytes(), before);
  EXPECT_EQ(cache.find(text).known, kBlock);
}

TEST(PrefixCache, LongTextsNeedNoDeepStack) {
  Cache cache(kBlockBytes, kCheckpointBytes, std::uint64_t{1} << 30);
  Text text(static_cast<std::size_t>(kBlock) * 100'000, 7);
  EXPECT_TRUE(cache.insert(
      text, [](std::int64_t, std::int64_t) { return HostBytes(); }, [] { return filled(kCheckpointBytes, 0); }));
  EXPECT_EQ(cache.find(text).tokens, static_cast<std::int64_t>(text.size()));
}

}  // namespace
}  // namespace thalweg::engine
