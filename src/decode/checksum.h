#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace thalweg::decode {

// A 64-bit checksum of a run of bytes, independent of how calls split it. Every step is a bijection of the sum for a
// given word and of the word for a given sum: a change within one word is always detected, others are missed once in
// 2^64.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes) {
    const std::byte* next = bytes.data();
    std::size_t left = bytes.size();
    total_ += left;
    while (left > 0 && (filled_ > 0 || left < sizeof(word_))) {
      word_[filled_++] = *next++;
      --left;
      if (filled_ < sizeof(word_)) continue;
      mix(word_);
      filled_ = 0;
    }
    for (; left >= sizeof(word_); left -= sizeof(word_), next += sizeof(word_)) mix(next);
    if (left == 0) return;
    std::memcpy(word_, next, left);
    filled_ = left;
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text.data(), text.size()))); }
  template <class T>
  void add_value(const T& value) {
    add(std::as_bytes(std::span(&value, 1)));
  }

  std::uint64_t value() const {
    Checksum last = *this;
    std::memset(last.word_ + filled_, 0, sizeof(word_) - filled_);
    last.mix(last.word_);
    std::uint64_t sum = last.sum_ ^ total_;
    sum = (sum ^ sum >> 32) * kFactor;
    sum = (sum ^ sum >> 29) * kFactor;
    return sum ^ sum >> 32;
  }

 private:
  static constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15U;

  void mix(const std::byte* bytes) {
    std::uint64_t word;
    std::memcpy(&word, bytes, sizeof(word));
    sum_ = std::rotl((sum_ ^ word) * kFactor, 29);
  }

  std::uint64_t sum_ = 0x6A09E667F3BCC908U;
  std::uint64_t total_ = 0;
  std::byte word_[8] = {};
  std::size_t filled_ = 0;
};

}  // namespace thalweg::decode
