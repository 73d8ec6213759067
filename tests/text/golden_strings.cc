#include "golden_strings.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "cases/random.h"
#include "text/utf8.h"

namespace thalweg::text {

using cases::Random;

std::filesystem::path golden_path(std::string_view file) {
  return std::filesystem::path(THALWEG_TEST_DIR) / "text" / "goldens" / file;
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("no file " + path.string());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Strings::Strings() : generator_(nlohmann::json::parse(read_text(golden_path("generator.json")))) {
  for (const auto& range : generator_["ranges"])
    ranges_.emplace_back(range[0].get<char32_t>(), range[1].get<char32_t>());
}

std::string Strings::make(std::uint64_t seed, std::uint64_t index) const {
  Random random(Random(index + (seed << 32)).bits());
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random.bits() % n); };
  const auto& kind = generator_["kinds"][index % generator_["kinds"].size()];
  const auto& draw = kind["draw"];
  std::string text;
  for (std::size_t count = 1 + below(kind["most"].get<std::size_t>()); count > 0; --count) {
    const auto& source = draw[below(draw.size())].get_ref<const std::string&>();
    if (source == "#") {
      const auto [low, high] = ranges_[below(ranges_.size())];
      append_utf8(text, static_cast<char32_t>(low + below(high - low + 1)));
    } else {
      const auto& list = generator_["lists"][source];
      text += list[below(list.size())].get_ref<const std::string&>();
    }
  }
  std::string whole = text;
  for (int damage = kind.value("damage", 0); damage > 0; --damage) {
    const std::size_t operation = below(4);
    const std::size_t place = below(text.size() + 1);
    const char byte = static_cast<char>(below(256));
    if (operation == 0 || place == text.size()) {
      text.insert(place, 1, byte);
    } else if (operation == 1) {
      text[place] = byte;
    } else if (operation == 2) {
      text.erase(place, 1);
    } else {
      text[place] = static_cast<char>(text[place] | '\x80');
    }
  }
  // Damaged bytes may form characters that only newer versions of Unicode assign.
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = decode_utf8(std::string_view(text).substr(at));
    if (!is_assigned(step.code_point)) return whole;
    at += step.length;
  }
  return text;
}

bool Strings::is_assigned(char32_t code_point) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), code_point,
                                      [](char32_t value, const auto& range) { return value < range.first; });
  return after != ranges_.begin() && code_point <= std::prev(after)->second;
}

void Strings::each_code_point(const std::function<void(const std::string&)>& take) const {
  for (const auto& [low, high] : ranges_) {
    for (char32_t number = low; number <= high; ++number) {
      std::string c;
      append_utf8(c, number);
      std::string text;
      for (const std::string_view part : {"a",      "#",  "b 1", "#",    "#",       "2 ", "#",
                                          "#",      " '", "#",   " we'", "#",       "\n", "#",
                                          " \r\n ", "#",  "\t",  "#",    "e\u0301", "#",  "\u0323\u0302\u3099",
                                          "#"}) {
        text += part == "#" ? std::string_view(c) : part;
      }
      take(text);
    }
  }
}

void BlockHashes::add_word(std::uint32_t word) {
  for (int byte = 0; byte < 4; ++byte) value_ = (value_ ^ ((word >> (8 * byte)) & 0xFFU)) * 0x100000001B3U;
}

void BlockHashes::add(std::span<const std::int32_t> ids) {
  add_word(static_cast<std::uint32_t>(ids.size()));
  for (const std::int32_t id : ids) add_word(static_cast<std::uint32_t>(id));
  if (++count_ % block_ == 0) close();
}

void BlockHashes::close() {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(value_));
  hashes_.emplace_back(digits.data());
  value_ = kStart;
}

std::vector<std::string> BlockHashes::finish() {
  if (count_ % block_ != 0) close();
  return std::move(hashes_);
}

}  // namespace thalweg::text
