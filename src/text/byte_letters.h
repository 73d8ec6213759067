#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace thalweg::text {

// Byte-level BPE writes each byte as one letter, so that vocabularies hold no blanks and no broken UTF-8: printable
// bytes of Latin-1 are written as themselves, the others as U+0100 and following in their order.
std::string byte_letter(unsigned char byte);

// The letters of bytes, and the bytes of letters; none if a character of the token is not such a letter.
std::string letters_of_bytes(std::string_view bytes);
std::optional<std::string> bytes_of_letters(std::string_view token);

}  // namespace thalweg::text
