// Pages of a device's memory, here the host's, and copies between segments.

#include "engine/device_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

namespace thalweg::engine {
namespace {

constexpr std::size_t kPage = std::size_t{256} << 10;

TEST(PagePool, PagesComeAndGo) {
  const decode::Runtime runtime(Device{}, 1, ThreadPool{}, false);
  const auto pool = std::make_shared<PagePool>(runtime, 20 * kPage + 5, 0);
  EXPECT_EQ(pool->bytes(), 20 * kPage);
  std::mt19937 random(1);
  std::vector<DeviceBytes> taken;
  std::size_t used = 0;
  int full = 0;
  for (int i = 0; i < 2000; ++i) {
    if (random() % 2 == 0 && !taken.empty()) {
      std::swap(taken[random() % taken.size()], taken.back());
      used -= taken.back()->segments().size();
      taken.pop_back();
      continue;
    }
    const std::size_t bytes = 1 + random() % (6 * kPage);
    if (used + pool->rounded(bytes) / kPage > 20) {
      EXPECT_THROW(pool->take(bytes), std::bad_alloc);
      ++full;
      continue;
    }
    taken.push_back(pool->take(bytes));
    used += pool->rounded(bytes) / kPage;
    std::set<const std::byte*> pages;
    for (const DeviceBytes& memory : taken) {
      for (const decode::MemorySegment& segment : memory->segments()) {
        EXPECT_EQ(segment.bytes, kPage);
        EXPECT_TRUE(pages.insert(segment.data).second) << "a page that two have";
      }
    }
    EXPECT_EQ(pages.size(), used);
  }
  EXPECT_GT(full, 0);
}

TEST(PagePool, PagesFitTheParts) {
  const decode::Runtime runtime(Device{}, 1, ThreadPool{}, false);
  for (const std::size_t part : {1UL, 4096UL, 100'000UL, 262'144UL, 262'145UL, 1'310'720UL, 3'000'000UL}) {
    const PagePool pool(runtime, 16 << 20, part);
    EXPECT_LE(pool.page(), kPage);
    EXPECT_EQ(pool.page() % 4096, 0U);
    EXPECT_GE(pool.rounded(part), part);
    EXPECT_LT(pool.rounded(part) - part, 4096 * (pool.rounded(part) / pool.page())) << part;
  }
}

TEST(PagePool, OutlivesItsOwner) {
  const decode::Runtime runtime(Device{}, 1, ThreadPool{}, false);
  auto pool = std::make_shared<PagePool>(runtime, 2 * kPage, 0);
  const DeviceBytes memory = pool->take(kPage + 1);
  pool.reset();
  for (const decode::MemorySegment& segment : memory->segments()) std::memset(segment.data, 1, segment.bytes);
}

// MemorySegments of random sizes, none among them, in memory that they do not fill.
struct Scattered {
  Scattered(std::mt19937& random, std::size_t total) : memory(3 * total + 64, std::byte{0xEE}) {
    std::size_t at = 0;
    for (std::size_t left = total; left > 0;) {
      const std::size_t bytes = std::min<std::size_t>(left, random() % 50);
      segments.push_back({memory.data() + at, bytes});
      at += bytes + (bytes > 0 ? random() % 2 : 0);
      left -= bytes;
    }
  }
  std::vector<std::byte> joined() const {
    std::vector<std::byte> all;
    for (const decode::MemorySegment& segment : segments)
      all.insert(all.end(), segment.data, segment.data + segment.bytes);
    return all;
  }
  std::vector<std::byte> memory;
  std::vector<decode::MemorySegment> segments;
};

TEST(MemorySegments, AreCopiedInOrder) {
  const decode::Runtime runtime(Device{}, 1, ThreadPool{}, false);
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    const std::size_t total = 1 + random() % 500;
    const std::size_t more = random() % 100;
    Scattered from(random, total);
    Scattered to(random, total + more);
    for (const decode::MemorySegment& segment : from.segments) {
      for (std::size_t b = 0; b < segment.bytes; ++b) segment.data[b] = static_cast<std::byte>(random());
    }
    const std::vector<std::byte> before = to.memory;
    std::vector<MemoryCopy> copies;
    decode::add_copies(to.segments, from.segments, copies);
    runtime.copy(copies);
    std::vector<std::byte> expected = from.joined();
    expected.resize(total + more, std::byte{0xEE});
    EXPECT_EQ(to.joined(), expected);
    // Nothing but the segments has changed.
    for (const decode::MemorySegment& segment : to.segments) std::fill_n(segment.data, segment.bytes, std::byte{0xEE});
    EXPECT_EQ(to.memory, before);
    std::vector<std::byte> first(more);
    std::size_t at = 0;
    for (const decode::MemorySegment& segment : decode::first_bytes(from.segments, std::min(more, total))) {
      std::copy_n(segment.data, segment.bytes, first.begin() + static_cast<std::ptrdiff_t>(at));
      at += segment.bytes;
    }
    EXPECT_EQ(at, std::min(more, total));
    EXPECT_TRUE(std::equal(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(at), expected.begin()));
  }
}

TEST(MemorySegments, WithoutASourceAreZeros) {
  const decode::Runtime runtime(Device{}, 1, ThreadPool{}, false);
  std::vector<std::byte> memory(64, std::byte{1});
  const MemoryCopy zeros[] = {{memory.data() + 8, nullptr, 16}, {memory.data() + 40, nullptr, 0}};
  runtime.copy(zeros);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    EXPECT_EQ(memory[i], std::byte{i < 8 || i >= 24 ? std::uint8_t{1} : std::uint8_t{0}}) << i;
  }
}

}  // namespace
}  // namespace thalweg::engine
