#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "cases/nn.h"

namespace thalweg::cases {

// A case of attention.
struct Attend {
  std::vector<std::int64_t> fresh = {1};  // new tokens of each sequence
  std::vector<std::int64_t> before = {};  // tokens cached before them; none without
  std::vector<std::int64_t> slots = {};   // in a cache of two more slots than sequences; -1: absent
  std::int64_t page = 0;                  // tokens of a page; 0: none
  std::vector<std::int64_t> absent = {};  // sequences whose first page is -1
  std::int64_t capacity = 0;              // S; 0: the longest sequence
  std::int64_t heads = 4;
  std::int64_t key_heads = 2;
  std::int64_t width = 32;
  DType dtype = DType::kF32;
  DType cache_dtype = DType::kF32;
  bool to_f32 = false;
  bool gate = false;
  std::optional<float> scale = {};
  bool strided = false;
  bool bf16_operands = false;
  double queries = 1.0;    // standard deviation of the queries
  double values = 1.0;     // and of the values
  std::int64_t rows = -1;  // (token, head) pairs to check; -1: all of them
  bool large = false;      // values from a table: a normal deviate for each would take longer than the run

  bool is_absent(std::size_t n) const {
    if (page > 0) return std::find(absent.begin(), absent.end(), static_cast<std::int64_t>(n)) != absent.end();
    return !slots.empty() && slots[n] == -1;
  }
  std::int64_t tokens() const { return std::accumulate(fresh.begin(), fresh.end(), std::int64_t{0}); }
  std::vector<std::int64_t> lengths() const {
    std::vector<std::int64_t> sums = fresh;
    for (std::size_t n = 0; n < before.size(); ++n) sums[n] += before[n];
    return sums;
  }
  // What the operation reads: of an absent sequence the length means nothing.
  std::vector<std::int64_t> given_lengths() const {
    std::vector<std::int64_t> given = lengths();
    for (std::size_t n = 0; n < given.size(); ++n) {
      if (is_absent(n)) given[n] = n % 2 == 0 ? 1000000 : -3;
    }
    return given;
  }
  std::int64_t longest() const {
    std::int64_t length = 0;
    for (const std::int64_t candidate : lengths()) length = std::max(length, candidate);
    return length;
  }
  // "_1x64" for large batches of one size.
  static std::string list_of(const std::vector<std::int64_t>& values) {
    const bool same = std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
    if (values.size() <= 8 || !same) return list_name(values);
    return "_" + std::to_string(values[0]) + "x" + std::to_string(values.size());
  }
  std::int64_t pages_of(std::int64_t length) const { return (length + page - 1) / page; }
  std::int64_t positions() const { return capacity > 0 ? capacity : std::max<std::int64_t>(1, longest()); }

  std::string name() const {
    std::string text = "new" + list_of(fresh);
    if (!before.empty()) text += "_after" + list_of(before);
    if (!slots.empty()) text += "_slots" + list_name(slots);
    if (page > 0) text += "_page" + std::to_string(page);
    if (!absent.empty()) text += "_absent" + list_name(absent);
    text += "_S" + std::to_string(positions()) + "_H" + std::to_string(heads) + "_" + std::to_string(key_heads) + "_D" +
            std::to_string(width) + "_" + std::string(dtype_name(dtype)) + "_cache" +
            std::string(dtype_name(cache_dtype));
    if (to_f32) text += "_toF32";
    if (gate) text += "_gate";
    if (scale) text += "_scale";
    if (strided) text += "_strided";
    if (bf16_operands) text += "_bf16operands";
    if (queries > 1.0) text += "_largeQ";
    if (values > 1.0) text += "_large";
    return text;
  }
};

}  // namespace thalweg::cases
