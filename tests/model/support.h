#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/threads.h"
#include "model/tiny_model.h"
#include "thalweg/backend.h"
#include "thalweg/error.h"
#include "thalweg/model.h"

namespace thalweg::model {

// A folder that is removed at the end of the test.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "thalweg-model-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot make " << name;
    path_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string operator/(const std::string& file) const { return (path_ / file).string(); }

 private:
  std::filesystem::path path_;
};

// While it lives, small tasks are shared out over all threads too, as large ones are: else the tiny models would run on
// the caller alone, whatever the number of threads.
class OnAllThreads {
 public:
  OnAllThreads() { min_thread_ns = 0.0; }
  ~OnAllThreads() { min_thread_ns = before_; }
  OnAllThreads(const OnAllThreads&) = delete;
  OnAllThreads& operator=(const OnAllThreads&) = delete;

 private:
  const double before_ = min_thread_ns;
};

// Options with arithmetic as close to f32 as possible.
inline ModelOptions precise(int sequences = 1) {
  ModelOptions options;
  options.device = kCpu;
  options.threads = 2;
  options.context = 1024;
  options.sequences = sequences;
  options.exact = true;
  options.kv_dtype = DType::kF32;
  return options;
}

using Logits = std::vector<std::vector<float>>;

inline Logits logits_of_each(Model& model, Sequence& sequence, std::span<const std::int32_t> tokens) {
  Logits logits;
  model.prefill_each(sequence, tokens, [&](std::int64_t index, std::span<const float> row) {
    EXPECT_EQ(index, static_cast<std::int64_t>(logits.size()));
    logits.emplace_back(row.begin(), row.end());
  });
  return logits;
}

inline bool has_gpu() {
  for (const BackendInfo& backend : backends()) {
    if (backend.type == DeviceType::kCuda && backend.available) return true;
  }
  return false;
}

inline ModelOptions on_gpu(int sequences = 1, bool exact = false) {
  ModelOptions options;
  options.device = Device{DeviceType::kCuda, 0};
  options.context = 1024;
  options.sequences = sequences;
  options.exact = exact;
  options.kv_dtype = exact ? DType::kF32 : DType::kF16;
  return options;
}

inline std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

// The largest difference, relative to the range of the expected values.
template <class Expected>
double difference(const std::vector<float>& given, const std::vector<Expected>& expected) {
  EXPECT_EQ(given.size(), expected.size());
  const auto [least, most] = std::minmax_element(expected.begin(), expected.end());
  double largest = 0;
  for (std::size_t i = 0; i < given.size() && i < expected.size(); ++i) {
    const double error = std::abs(static_cast<double>(given[i]) - static_cast<double>(expected[i]));
    largest = std::isnan(error) ? INFINITY : std::max(largest, error);
  }
  return largest / static_cast<double>(*most - *least);
}

template <class Expected>
double difference(const Logits& given, const std::vector<std::vector<Expected>>& expected) {
  EXPECT_EQ(given.size(), expected.size());
  double largest = 0;
  for (std::size_t i = 0; i < given.size() && i < expected.size(); ++i) {
    largest = std::max(largest, difference(given[i], expected[i]));
  }
  return largest;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

inline std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline void write_file(const std::string& path, std::string_view content) {
  std::ofstream stream(path, std::ios::binary);
  stream.write(content.data(), static_cast<std::streamsize>(content.size()));
  EXPECT_TRUE(stream) << path;
}

// The call throws an Error whose message holds each of `parts`.
template <class Call>
void expect_error(Call&& call, std::initializer_list<std::string_view> parts) {
  try {
    call();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    for (std::string_view part : parts) {
      EXPECT_NE(message.find(part), std::string_view::npos) << message << "\n  lacks: " << part;
    }
    return;
  }
  ADD_FAILURE() << "no error about " << *parts.begin();
}

}  // namespace thalweg::model
