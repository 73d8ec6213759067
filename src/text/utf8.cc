#include "text/utf8.h"

namespace thalweg::text {
namespace {

struct Lead {
  std::size_t length;
  unsigned second_low;  // the range of the second byte keeps out overlong forms, surrogates and > U+10FFFF
  unsigned second_high;
};

Lead lead_of(unsigned byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte < 0xF0) return {3, byte == 0xE0 ? 0xA0U : 0x80U, byte == 0xED ? 0x9FU : 0xBFU};
  if (byte < 0xF5) return {4, byte == 0xF0 ? 0x90U : 0x80U, byte == 0xF4 ? 0x8FU : 0xBFU};
  return {0, 0, 0};
}

}  // namespace

Utf8Step decode_utf8(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(bytes[i])); };
  const Lead lead = lead_of(at(0));
  if (lead.length == 1) return {at(0), 1, true, false};
  if (lead.length == 0) return {kReplacement, 1, false, false};
  char32_t code_point = at(0) & (0x7FU >> lead.length);
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {kReplacement, i, false, true};
    const unsigned low = i == 1 ? lead.second_low : 0x80U;
    const unsigned high = i == 1 ? lead.second_high : 0xBFU;
    if (at(i) < low || at(i) > high) return {kReplacement, i, false, false};
    code_point = (code_point << 6) | (at(i) & 0x3FU);
  }
  return {code_point, lead.length, true, false};
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto push = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | (code_point >> 6));
    push(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    push(0xE0 | (code_point >> 12));
    push(0x80 | ((code_point >> 6) & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | (code_point >> 18));
    push(0x80 | ((code_point >> 12) & 0x3F));
    push(0x80 | ((code_point >> 6) & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  std::size_t kept = 0;  // bytes before it are in text
  for (std::size_t at = 0; at < bytes.size();) {
    const Utf8Step step = decode_utf8(bytes.substr(at));
    if (!step.valid) {
      text.append(bytes, kept, at - kept);
      append_utf8(text, kReplacement);
      kept = at + step.length;
    }
    at += step.length;
  }
  return text.append(bytes, kept);
}

}  // namespace thalweg::text
