// Copies between segments and one array, through buffers that segments neither fill nor fit.

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "decode/staged_copies.h"

namespace thalweg::decode {
namespace {

std::vector<std::byte> random_bytes(std::size_t count, std::mt19937& random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(StagedCopies, SegmentsAreCopiedInOrder) {
  constexpr std::size_t kBufferBytes = 64;
  const Runtime runtime(kCpu, 2, {}, false);
  StagedCopies copies(runtime, kBufferBytes);
  std::mt19937 random(std::random_device{}());
  const std::vector<std::vector<std::size_t>> layouts = {
      {}, {0}, {1}, {63}, {64}, {65}, {0, 64, 0}, {10, 0, 54, 1}, {300}, {5, 200, 7, 64, 64, 1, 129}};
  for (const std::vector<std::size_t>& layout : layouts) {
    std::vector<std::vector<std::byte>> memory;
    std::vector<MemorySegment> segments;
    std::vector<std::byte> expected;
    for (const std::size_t bytes : layout) {
      memory.push_back(random_bytes(bytes, random));
      expected.insert(expected.end(), memory.back().begin(), memory.back().end());
    }
    for (std::vector<std::byte>& segment : memory) segments.push_back({segment.data(), segment.size()});

    const std::vector<std::byte> guard(8, std::byte{0x5A});
    std::vector<std::byte> read = random_bytes(expected.size(), random);
    read.insert(read.end(), guard.begin(), guard.end());
    copies.read(segments, read.data());
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), read.begin()));
    EXPECT_TRUE(std::equal(guard.begin(), guard.end(), read.end() - 8));

    const std::vector<std::byte> written = random_bytes(expected.size(), random);
    copies.write(segments, written.data());
    std::size_t at = 0;
    for (const std::vector<std::byte>& segment : memory) {
      EXPECT_TRUE(std::equal(segment.begin(), segment.end(), written.begin() + static_cast<std::ptrdiff_t>(at)));
      at += segment.size();
    }
  }
}

}  // namespace
}  // namespace thalweg::decode
