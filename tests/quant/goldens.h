#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "thalweg/dtype.h"

namespace thalweg {

// Every format that is packed or unpacked.
inline const std::vector<DType>& weight_types() {
  static const std::vector<DType> types = [] {
    std::vector<DType> list;
    for (int i = 0; i < kNumDTypes; ++i) {
      if (static_cast<DType>(i) != DType::kI32) list.push_back(static_cast<DType>(i));
    }
    return list;
  }();
  return types;
}

// How test names and messages print a format.
// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest looks for this name
inline void PrintTo(DType dtype, std::ostream* stream) { *stream << dtype_name(dtype); }

inline std::string test_name(const testing::TestParamInfo<DType>& test) { return std::string(dtype_name(test.param)); }

// Made by tools/make_quant_goldens.py.
inline std::filesystem::path golden_path(const std::string& file) {
  return std::filesystem::path(THALWEG_TEST_DIR) / "quant" / "goldens" / file;
}

inline std::vector<char> read_golden(const std::string& file) {
  std::ifstream stream(golden_path(file), std::ios::binary);
  EXPECT_TRUE(stream) << "cannot read " << golden_path(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace thalweg
