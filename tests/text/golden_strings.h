#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thalweg::text {

std::filesystem::path golden_path(std::string_view file);
std::string read_text(const std::filesystem::path& path);

// The strings of tools/make_tokenizer_goldens.py, byte for byte.
class Strings {
 public:
  Strings();

  std::string make(std::uint64_t seed, std::uint64_t index) const;
  // One string for each code point that Unicode 13 assigns.
  void each_code_point(const std::function<void(const std::string&)>& take) const;

 private:
  bool is_assigned(char32_t code_point) const;

  nlohmann::json generator_;
  std::vector<std::pair<char32_t, char32_t>> ranges_;  // first and last, in order
};

// FNV-1a over the number of ids of each string and the ids, one hash for each block of strings.
class BlockHashes {
 public:
  explicit BlockHashes(std::size_t block) : block_(block) {}
  void add(std::span<const std::int32_t> ids);
  std::vector<std::string> finish();

 private:
  void add_word(std::uint32_t word);
  void close();

  static constexpr std::uint64_t kStart = 0xCBF29CE484222325U;
  std::size_t block_;
  std::size_t count_ = 0;
  std::uint64_t value_ = kStart;
  std::vector<std::string> hashes_;
};

}  // namespace thalweg::text
