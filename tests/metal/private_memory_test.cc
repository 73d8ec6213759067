// Memory of the device is private: only the stream reaches it, and the host that follows its address crashes.

#include "metal/private_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/device_functions.h"
#include "metal/host/attach.h"
#include "metal/host/executor.h"
#include "metal/layers.h"
#include "ops/backends.h"
#include "thalweg/device_memory.h"
#include "thalweg/error.h"

namespace thalweg::metal {
namespace {

constexpr Device kMetal{DeviceType::kMetal, 0};

class PrivateMemory : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { attach_executor(); }  // NOLINT(readability-identifier-naming)

  void SetUp() override {  // NOLINT(readability-identifier-naming)
    functions_ = backend(DeviceType::kMetal).device;
    stream_ = {kMetal, 0, functions_->resident->create_stream(kMetal)};
  }
  void TearDown() override {  // NOLINT(readability-identifier-naming)
    functions_->resident->destroy_stream(kMetal, stream_.native);
  }

  std::vector<std::uint8_t> random_bytes(std::size_t count) {
    std::vector<std::uint8_t> bytes(count);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random_());
    return bytes;
  }

  const DeviceFunctions* functions_ = nullptr;
  Stream stream_;
  std::mt19937 random_{std::random_device{}()};
};

using PrivateMemoryDeathTest = PrivateMemory;

TEST_F(PrivateMemoryDeathTest, TheHostCannotReachIt) {
  const DeviceMemory memory(kMetal, 5000);
  EXPECT_TRUE(is_private(memory.data()));
  auto* bytes = static_cast<volatile char*>(memory.data());
  EXPECT_DEATH(static_cast<void>(bytes[0]), "");
  EXPECT_DEATH(bytes[4999] = 1, "");
}

TEST_F(PrivateMemory, PinnedMemoryIsShared) {
  auto* pinned = static_cast<std::uint8_t*>(functions_->resident->allocate_pinned(kMetal, 300));
  EXPECT_TRUE(is_allocated(pinned + 299));
  EXPECT_FALSE(is_private(pinned));
  pinned[299] = 7;
  const DeviceMemory memory(kMetal, 300);
  functions_->resident->enqueue_copy(stream_, memory.data(), pinned, 300);
  std::uint8_t last = 0;
  copy_to_host(stream_, &last, static_cast<std::uint8_t*>(memory.data()) + 299, 1);
  EXPECT_EQ(last, 7);
  functions_->resident->release_pinned(pinned);
}

// Sizes and offsets of words and of single bytes; a stream of a model's and one of an operation's.
TEST_F(PrivateMemory, CopiesKeepEveryByte) {
  for (const Stream& stream : {stream_, Stream{kMetal, 0, nullptr}}) {
    for (const std::size_t bytes : {1U, 3U, 4U, 64U, 2047U, 2048U, 2049U, 8192U}) {
      for (const std::size_t offset : {0U, 1U, 4U, 6U}) {
        const std::vector<std::uint8_t> around = random_bytes(bytes + 16);
        const std::vector<std::uint8_t> given = random_bytes(bytes);
        const DeviceMemory first(kMetal, around.size());
        const DeviceMemory second(kMetal, around.size());
        copy_to_device(stream, first.data(), around.data(), around.size());
        copy_to_device(stream, static_cast<std::uint8_t*>(first.data()) + offset, given.data(), bytes);
        copy_to_device(stream, second.data(), first.data(), around.size());
        std::vector<std::uint8_t> expected = around;
        std::copy(given.begin(), given.end(), expected.begin() + static_cast<std::ptrdiff_t>(offset));
        std::vector<std::uint8_t> actual(around.size());
        copy_to_host(stream, actual.data(), second.data(), actual.size());
        EXPECT_EQ(actual, expected) << bytes << " bytes at " << offset;
      }
    }
  }
}

// What a stream's uploads read may be changed on return, and nothing waits for them.
TEST_F(PrivateMemory, UploadsAndClearsKeepTheOrderOfTheStream) {
  const ResidentFunctions& resident = *functions_->resident;
  const DeviceMemory memory(kMetal, 1000);
  auto* bytes = static_cast<std::uint8_t*>(memory.data());
  std::vector<std::uint8_t> given = random_bytes(1000);
  std::vector<std::uint8_t> expected = given;
  reset_executor_counts();
  resident.enqueue_copy(stream_, bytes, given.data(), 1000);
  given = random_bytes(1000);
  resident.enqueue_zeros(stream_, bytes + 100, 301);
  std::fill_n(expected.begin() + 100, 301, std::uint8_t{0});
  resident.enqueue_copy(stream_, bytes + 200, given.data(), 50);
  std::copy_n(given.begin(), 50, expected.begin() + 200);
  given.assign(1000, 0xFF);
  EXPECT_EQ(executor_command_buffers(), 0U);
  copy_to_host(stream_, given.data(), bytes, 1000);
  EXPECT_EQ(executor_command_buffers(), 1U);
  EXPECT_EQ(given, expected);
}

// Uploads without end take no memory without end.
TEST_F(PrivateMemory, UploadsWaitOnlyWhenMuchIsStaged) {
  constexpr std::size_t kBytes = std::size_t{24} << 20;
  const DeviceMemory memory(kMetal, kBytes);
  const std::vector<std::uint8_t> given = random_bytes(kBytes);
  reset_executor_counts();
  for (const std::uint64_t waited : {0U, 0U, 1U, 1U}) {
    functions_->resident->enqueue_copy(stream_, memory.data(), given.data(), kBytes);
    EXPECT_EQ(executor_command_buffers(), waited);
  }
  std::vector<std::uint8_t> actual(kBytes);
  copy_to_host(stream_, actual.data(), memory.data(), kBytes);
  EXPECT_EQ(executor_command_buffers(), 2U);
  EXPECT_EQ(actual, given);
}

// A graph that uploads does so with the bytes of its capture.
TEST_F(PrivateMemory, GraphsKeepWhatTheyUpload) {
  const ResidentFunctions& resident = *functions_->resident;
  const DeviceMemory memory(kMetal, 64);
  std::vector<std::uint8_t> given = random_bytes(64);
  const std::vector<std::uint8_t> expected = given;
  void* graph = resident.capture(stream_, [&] { resident.enqueue_copy(stream_, memory.data(), given.data(), 64); });
  for (int run = 0; run < 2; ++run) {
    resident.enqueue_zeros(stream_, memory.data(), 64);
    resident.launch(stream_, graph);
    copy_to_host(stream_, given.data(), memory.data(), 64);
    EXPECT_EQ(given, expected);
  }
  resident.destroy_graph(graph);
}

TEST_F(PrivateMemory, BuffersEndWithinIt) {
  const DeviceMemory memory(kMetal, 256);
  std::vector<std::uint8_t> target(512);
  const CopyParameters p{128, 512, 0};
  Launch launch = columns_launch("copy_words", 128);
  launch.set(p).add(memory.data(), 512).add(target.data(), 512).constant("kWidth", 4).constant("kHasOther", true);
  try {
    ExecutorEncoder("test").launch(launch);
    FAIL() << "a buffer of 512 bytes in 256";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("at most the 256 bytes of its private memory"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace thalweg::metal
