#include "text/byte_letters.h"

#include <array>

#include "text/utf8.h"

namespace thalweg::text {
namespace {

constexpr char32_t kLetters = 0x100 + 68;  // 68 bytes do not stand for themselves

struct Alphabet {
  std::array<char32_t, 256> letter{};
  std::array<int, kLetters> byte{};  // -1: no letter
};

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (int& byte : alphabet.byte) byte = -1;
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char32_t letter = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.letter[byte] = letter;
    alphabet.byte[letter] = static_cast<int>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();
static_assert(kAlphabet.letter[' '] == 0x120 && kAlphabet.byte[kLetters - 1] == 0xAD);

}  // namespace

std::string byte_letter(unsigned char byte) {
  std::string letter;
  append_utf8(letter, kAlphabet.letter[byte]);
  return letter;
}

std::string letters_of_bytes(std::string_view bytes) {
  std::string letters;
  for (const char byte : bytes) append_utf8(letters, kAlphabet.letter[static_cast<unsigned char>(byte)]);
  return letters;
}

std::optional<std::string> bytes_of_letters(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const Utf8Step step = decode_utf8(token);
    if (!step.valid || step.code_point >= kLetters || kAlphabet.byte[step.code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte[step.code_point]));
    token.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace thalweg::text
