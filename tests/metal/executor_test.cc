// The executor's detection of faults: each kernel of faults.metal has one.

#include "metal/host/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "core/float16.h"
#include "metal/host/programs.h"
#include "metal/programs.h"
#include "thalweg/error.h"

namespace thalweg::metal {
namespace {

struct Sizes {
  std::int32_t count;
};

class Executor : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {  // NOLINT(readability-identifier-naming)
    static const bool added = (add_programs(kTestPrograms, kNumTestPrograms), true);
    EXPECT_TRUE(added);
  }

  void SetUp() override {  // NOLINT(readability-identifier-naming)
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] = static_cast<float>(i) + 1.0F;
  }

  // A launch of 64 threads on x and y, with room for 64 floats of threadgroup memory.
  Launch launch_of(std::string_view kernel) {
    Launch launch;
    launch.kernel = kernel;
    launch.set(sizes_).add(x_.data(), sizeof(x_)).add(y_.data(), sizeof(y_));
    launch.threads = 64;
    launch.threadgroup_bytes = 256;
    return launch;
  }

  // The reported fault, empty if there is none.
  static std::string fault_of(const Launch& launch) {
    try {
      ExecutorEncoder("test").launch(launch);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }
  std::string fault_of(std::string_view kernel) { return fault_of(launch_of(kernel)); }

  Sizes sizes_{64};
  std::array<float, 64> x_{};
  std::array<float, 64> between_{};  // belongs to neither
  std::array<float, 64> y_{};
};

#define EXPECT_FAULT(kernel, text)                                             \
  do {                                                                         \
    const std::string fault = fault_of(kernel);                                \
    EXPECT_NE(fault.find(text), std::string::npos) << kernel << ": " << fault; \
  } while (false)

TEST_F(Executor, RunsKernelsWithoutMistakes) {
  for (const char* kernel : {"copies", "turns_around", "turns_simdgroups_around"}) {
    y_.fill(0.0F);
    EXPECT_EQ(fault_of(kernel), "");
    float sum = 0.0F;
    for (const float value : y_) sum += value;
    EXPECT_EQ(sum, 64.0F * 65.0F / 2.0F) << kernel;
  }
  EXPECT_EQ(y_[0], 32.0F);
}

TEST_F(Executor, FindsAccessesOutOfBounds) {
  EXPECT_FAULT("reads_behind_the_end", "read of 4 bytes out of bounds, 0 bytes behind the end of buffer 1");
  EXPECT_FAULT("writes_before_the_start", "write of 4 bytes out of bounds, 4 bytes before buffer 2");
  EXPECT_FAULT("writes_past_its_threadgroup_memory", "write of 4 bytes out of bounds: byte 256 of 256 of threadgroup");
  Launch absent = launch_of("copies");
  absent.buffers[0] = {};
  EXPECT_NE(fault_of(absent).find("at a null pointer"), std::string::npos);
}

TEST_F(Executor, FindsOtherWrongAccesses) {
  EXPECT_FAULT("writes_to_its_input", "write to a buffer that the kernel may only read");
  EXPECT_FAULT("reads_a_word_across", "not aligned");
}

TEST_F(Executor, FindsReadsOfUninitialisedThreadgroupMemory) {
  EXPECT_FAULT("reads_what_nobody_wrote", "read of uninitialized threadgroup memory, byte 252");
  // Writes of the previous threadgroup do not count.
  EXPECT_EQ(fault_of("turns_around"), "");
  EXPECT_FAULT("reads_what_nobody_wrote", "read of uninitialized threadgroup memory, byte 252");
}

TEST_F(Executor, FindsBarriersThatNotAllThreadsReach) {
  EXPECT_FAULT("half_reach_the_barrier", "a barrier that not all threads reach");
  EXPECT_FAULT("reach_different_barriers", "a barrier that not all threads reach");
  EXPECT_FAULT("some_lanes_sum", "a simdgroup operation that not all threads reach");
}

TEST_F(Executor, FindsDataRacesInThreadgroupMemory) {
  EXPECT_FAULT("swaps_without_a_barrier", "data race");
  EXPECT_FAULT("writes_after_others_read", "data race: written after it was read by thread");
  EXPECT_FAULT("orders_its_simdgroup_only", "data race");
}

TEST_F(Executor, FindsDataRacesInDeviceMemory) {
  EXPECT_FAULT("orders_other_memory", "data race: read of what was written by thread");
  EXPECT_FAULT("counts_without_atomics", "data race");
  Launch launch = launch_of("all_write_the_same");
  EXPECT_EQ(fault_of(launch), "");
  launch.grid = {2, 1, 1};
  EXPECT_NE(fault_of(launch).find("of another threadgroup"), std::string::npos);
}

// Independent of which lane holds which element.
TEST_F(Executor, FindsDataRacesOfMatrices) {
  for (std::size_t i = 0; i < y_.size(); ++i) y_[i] = static_cast<float>(i);
  EXPECT_EQ(fault_of("transposes_in_place"), "");
  EXPECT_EQ(y_[1], 8.0F);
  EXPECT_FAULT("copies_in_place_without_a_barrier", "data race: written after it was read by thread");
}

TEST_F(Executor, FindsMissingDependenciesBetweenLaunches) {
  for (const bool after : {true, false}) {
    ExecutorEncoder encoder("test");
    encoder.launch(launch_of("copies"));
    Launch second = launch_of("turns_around");
    std::array<float, 64> z{};
    second.buffers[0] = {y_.data(), sizeof(y_)};
    second.buffers[1] = {z.data(), sizeof(z)};
    second.after_previous = after;
    if (after) {
      EXPECT_NO_THROW(encoder.launch(second));
    } else {
      // Races are detected only in memory that a launch may write.
      second.buffers[0] = {x_.data(), sizeof(x_)};
      second.buffers[1] = {y_.data(), sizeof(y_)};
      EXPECT_THROW(encoder.launch(second), Error);
    }
  }
}

TEST_F(Executor, RefusesWhatMetalWouldRefuse) {
  Launch launch = launch_of("copies");
  launch.threads = 48;
  EXPECT_NE(fault_of(launch).find("48 threads"), std::string::npos);
  launch = launch_of("copies");
  launch.threadgroup_bytes = 32768 + 16;
  EXPECT_NE(fault_of(launch).find("bytes of threadgroup memory"), std::string::npos);
  launch = launch_of("copies");
  launch.num_buffers = 1;
  EXPECT_NE(fault_of(launch).find("missing buffers"), std::string::npos);
  launch = launch_of("copies");
  const std::array<std::uint32_t, 3> grid = {1, 1, 1};
  launch.indirect_grid = grid.data();
  EXPECT_NE(fault_of(launch).find("may not have been written yet"), std::string::npos);
  launch.after_previous = true;
  EXPECT_EQ(fault_of(launch), "");
  EXPECT_NE(fault_of("no_such_kernel").find("no_such_kernel"), std::string::npos);
}

TEST_F(Executor, FillsUnsetMatricesWithNaN) {
  EXPECT_EQ(fault_of("multiplies_an_unset_matrix"), "");
  EXPECT_TRUE(std::isnan(y_[0]));
}

TEST_F(Executor, CountsWithAtomics) {
  y_.fill(0.0F);
  EXPECT_EQ(fault_of("counts_with_atomics"), "");
  std::uint32_t count = 0;
  std::memcpy(&count, y_.data(), sizeof(count));
  EXPECT_EQ(count, 64U);
}

TEST_F(Executor, CountsWhatLaunchesDo) {
  reset_executor_counts();
  Launch launch = launch_of("turns_around");
  ExecutorEncoder("test").launch(launch);
  launch = launch_of("copies");
  launch.grid = {3, 1, 1};  // two threadgroups have no elements
  ExecutorEncoder("test").launch(launch);
  const Counts total = executor_total();
  EXPECT_EQ(total.launches, 2U);
  EXPECT_EQ(total.threadgroups, 4U);
  EXPECT_EQ(total.device_bytes_read, 512U);
  EXPECT_EQ(total.device_bytes_written, 512U);
  EXPECT_EQ(total.barriers, 1U);
  EXPECT_EQ(total.threadgroup_bytes, 256U);
}

// Every 16-bit pattern, and floats around the ties of rounding.
TEST_F(Executor, RoundsAsMetalDoes) {
  std::vector<float> values;
  std::mt19937 random(7);
  for (std::uint32_t high = 0; high < 65536; high += 3) {
    for (const std::uint32_t low : {0x0000U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const std::uint32_t bits = high << 16 | low;
      float value = 0.0F;
      std::memcpy(&value, &bits, sizeof(value));
      if (!std::isnan(value)) values.push_back(value);
    }
    // Ties of half: its last bit is bit 13.
    const std::uint32_t bits = (random() & 0xFFFFE000U) | 0x1000U;
    float value = 0.0F;
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isnan(value)) values.push_back(value);
  }
  std::vector<std::uint16_t> halves(values.size());
  std::vector<std::uint16_t> bfloats(values.size());
  const Sizes count{static_cast<std::int32_t>(values.size())};
  Launch launch;
  launch.kernel = "rounds";
  launch.set(count).add(values.data(), values.size() * 4).add(halves.data(), halves.size() * 2);
  launch.add(bfloats.data(), bfloats.size() * 2);
  launch.grid = {static_cast<std::uint32_t>(values.size() / 32 + 1), 1, 1};
  ASSERT_EQ(fault_of(launch), "");
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(halves[i], f32_to_f16(values[i])) << values[i];
    ASSERT_EQ(bfloats[i], f32_to_bf16(values[i])) << values[i];
  }
}

TEST_F(Executor, WidensEveryPattern) {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  std::vector<float> from_half(patterns.size());
  std::vector<float> from_bfloat(patterns.size());
  const Sizes count{65536};
  Launch launch;
  launch.kernel = "widens";
  launch.set(count).add(patterns.data(), 131072).add(patterns.data(), 131072);
  launch.add(from_half.data(), 262144).add(from_bfloat.data(), 262144);
  launch.grid = {2048, 1, 1};
  ASSERT_EQ(fault_of(launch), "");
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const float half = f16_to_f32(patterns[i]);
    const float bfloat = bf16_to_f32(patterns[i]);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(from_half[i]), std::bit_cast<std::uint32_t>(half)) << i;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(from_bfloat[i]), std::bit_cast<std::uint32_t>(bfloat)) << i;
  }
}

TEST_F(Executor, RoundsEachOperationOnHalves) {
  const std::array<std::uint16_t, 2> a = {f32_to_f16(2048.0F), f32_to_f16(60000.0F)};
  const std::array<std::uint16_t, 2> b = {f32_to_f16(1.0F), f32_to_f16(60000.0F)};
  std::array<std::uint16_t, 2> sums{};
  const Sizes count{2};
  Launch launch;
  launch.kernel = "adds";
  launch.set(count).add(a.data(), 4).add(b.data(), 4).add(sums.data(), 4);
  ASSERT_EQ(fault_of(launch), "");
  EXPECT_EQ(sums[0], f32_to_f16(2048.0F));  // a tie, to even
  EXPECT_EQ(sums[1], 0x7C00);               // infinity
}

TEST_F(Executor, SimdgroupFunctions) {
  std::array<float, 512> results{};
  Launch launch = launch_of("simdgroup_functions");
  launch.buffers[1] = {results.data(), sizeof(results)};
  launch.constant("kFactor", 3);
  ASSERT_EQ(fault_of(launch), "");
  for (std::size_t t = 0; t < 64; ++t) {
    const std::size_t lane = t % 32;
    const std::size_t first = t - lane;
    float sum = 0.0F;
    float before = 0.0F;
    for (std::size_t i = 0; i < 32; ++i) {
      if (i == lane) before = sum;
      sum += x_[first + i];
    }
    const float* mine = &results[8 * t];
    EXPECT_EQ(mine[0], sum);
    EXPECT_EQ(mine[1], x_[first + 31]);
    EXPECT_EQ(mine[2], before + x_[t]);
    EXPECT_EQ(mine[3], before);
    EXPECT_EQ(mine[4], x_[first + 31 - lane]);
    EXPECT_EQ(mine[5], x_[first + (lane ^ 5U)]);
    EXPECT_EQ(mine[6], x_[first + 3]);
    EXPECT_EQ(mine[7], 3.0F * 31.0F * 16.0F);
  }
}

TEST_F(Executor, MultipliesMatrices) {
  std::array<float, 128> a{};
  std::array<float, 128> product{};
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 11) - 5.0F;
  Launch launch = launch_of("multiplies");
  launch.buffers[0] = {a.data(), sizeof(a)};
  launch.buffers[1] = {product.data(), sizeof(product)};
  ASSERT_EQ(fault_of(launch), "");
  for (std::size_t m = 0; m < 2; ++m) {
    for (std::size_t i = 0; i < 8; ++i) {
      for (std::size_t j = 0; j < 8; ++j) {
        float exact = i == j ? 2.0F : 0.0F;
        for (std::size_t k = 0; k < 8; ++k) exact += a[64 * m + 8 * i + k] * a[64 * m + 8 * j + k];
        EXPECT_EQ(product[64 * m + 8 * i + j], exact);
      }
    }
  }
}

TEST_F(Executor, FindsConstantsThatWereNotSet) {
  std::array<float, 512> results{};
  Launch launch = launch_of("simdgroup_functions");
  launch.buffers[1] = {results.data(), sizeof(results)};
  EXPECT_NE(fault_of(launch).find("a function constant"), std::string::npos);
}

TEST_F(Executor, RefusesConstantsThatTheProgramLacks) {
  Launch launch = launch_of("copies");
  launch.constant("kFactor", 3);  // of another program
  EXPECT_NE(fault_of(launch).find("kFactor"), std::string::npos);
}

// The program embedded for Apple's systems contains the kernels of all files.
TEST(Embedded, HasEveryKernel) {
  const auto has = [](const CompiledProgram& program, std::string_view name) {
    return std::any_of(std::begin(program.kernels), std::end(program.kernels),
                       [&](const CompiledKernel& kernel) { return kernel.name != nullptr && kernel.name == name; });
  };
  const CompiledProgram* embedded = nullptr;
  for (std::size_t i = 0; i < kNumTestPrograms; ++i) {
    if (has(*kTestPrograms[i], "chunk_scan")) embedded = kTestPrograms[i];
  }
  ASSERT_NE(embedded, nullptr);
  std::size_t kernels = 0;
  for (std::size_t i = 0; i < kNumPrograms; ++i) {
    for (const CompiledKernel& kernel : kPrograms[i]->kernels) {
      if (kernel.name == nullptr) break;
      ++kernels;
      EXPECT_TRUE(has(*embedded, kernel.name)) << kernel.name;
    }
  }
  EXPECT_EQ(kernels, 41U);
}

}  // namespace
}  // namespace thalweg::metal
