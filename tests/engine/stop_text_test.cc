#include "engine/stop_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace thalweg::engine {
namespace {

// Where the first stop string that is complete begins: at the first end of any, the leftmost beginning.
std::string expected_text(const std::string& text, const std::vector<std::string>& stops, bool& stopped) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t begin = std::string::npos;
    for (const std::string& stop : stops) {
      const std::string_view head = std::string_view(text).substr(0, end);
      if (head.ends_with(stop)) begin = std::min(begin, end - stop.size());
    }
    if (begin != std::string::npos) {
      stopped = true;
      return text.substr(0, begin);
    }
  }
  stopped = false;
  return text;
}

TEST(StopText, CharacterByCharacterAgainstASearch) {
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const auto word = [&](std::size_t length) {
      std::string text;
      for (std::size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random() % 2);
      return text;
    };
    std::vector<std::string> stops;
    for (std::size_t i = 0; i < random() % 4; ++i) stops.push_back(word(1 + random() % 5));
    const std::string text = word(random() % 20);
    StopText stop(stops);
    std::string shown;
    for (const char c : text) shown += stop.push(std::string(1, c));
    shown += stop.finish();
    bool stopped = false;
    EXPECT_EQ(shown, expected_text(text, stops, stopped)) << text;
    EXPECT_EQ(stop.stopped(), stopped);
  }
}

TEST(StopText, PiecesOfAnyLengthShowNoStopString) {
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::string text;
    for (std::size_t i = 0; i < 30; ++i) text += static_cast<char>('a' + random() % 2);
    StopText stop({"abba"});
    std::string shown;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = 1 + random() % 9;
      shown += stop.push(text.substr(at, length));
      at += length;
    }
    shown += stop.finish();
    EXPECT_EQ(shown, text.substr(0, text.find("abba")));
  }
}

TEST(StopText, ShowsAtOnceWhatCannotBeginAStop) {
  StopText stop({"</s>"});
  EXPECT_EQ(stop.push("one <"), "one ");
  EXPECT_EQ(stop.push("b> two </"), "<b> two ");
  EXPECT_EQ(stop.push("s> three"), "");
  EXPECT_TRUE(stop.stopped());
  EXPECT_EQ(stop.push("four"), "");
}

}  // namespace
}  // namespace thalweg::engine
