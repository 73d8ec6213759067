#include "text/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "text/utf8.h"

namespace thalweg::text {
namespace {

// Every character below is a starter, is its own normal form and never joins the one before it.
constexpr char32_t kFirstUnstable = 0x300;

// Tokenizers were trained with a package that normalizes as of Unicode 9. A character that Unicode 10 to 15 made a
// combining mark or a composition is an ordinary character in that package, and must be one here. U+11930 is the second
// half of U+11938.
struct Range {
  char32_t first;
  char32_t last;
};
constexpr Range kAfterUnicode9[] = {
    {0x07FD, 0x07FD},   {0x0898, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},   {0x0C3C, 0x0C3C},
    {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

// The text between two stable characters can be normalized by itself.
bool is_stable(char32_t code_point) {
  if (code_point < kFirstUnstable) return true;
  const auto* range = std::lower_bound(std::begin(kAfterUnicode9), std::end(kAfterUnicode9), code_point,
                                       [](const Range& one, char32_t value) { return one.last < value; });
  return range != std::end(kAfterUnicode9) && range->first <= code_point;
}

constexpr std::size_t kLongestDecomposition = 32;  // Unicode's are at most 4 characters

auto combining_class(utf8proc_int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

void decompose(char32_t code_point, std::vector<utf8proc_int32_t>& out) {
  utf8proc_int32_t parts[kLongestDecomposition];
  int boundary = UTF8PROC_BOUNDCLASS_START;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), parts, kLongestDecomposition,
                                             UTF8PROC_DECOMPOSE, &boundary);
  out.insert(out.end(), parts, parts + std::clamp<utf8proc_ssize_t>(count, 0, kLongestDecomposition));
}

// utf8proc sorts by insertion, in quadratic time.
void sort_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto end = characters.end();
  for (auto first = characters.begin(); first != end;) {
    if (combining_class(*first) == 0) {
      ++first;
      continue;
    }
    const auto last = std::find_if(first, end, [](auto character) { return combining_class(character) == 0; });
    std::stable_sort(first, last, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    first = last;
  }
}

void append_normalized(std::string_view text, std::vector<utf8proc_int32_t>& buffer, std::string& out) {
  buffer.clear();
  while (!text.empty()) {
    const Utf8Step step = decode_utf8(text);
    decompose(step.code_point, buffer);
    text.remove_prefix(step.length);
  }
  sort_marks(buffer);
  const auto count = utf8proc_normalize_utf32(buffer.data(), static_cast<utf8proc_ssize_t>(buffer.size()),
                                              static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(out, static_cast<char32_t>(buffer[static_cast<size_t>(i)]));
}

}  // namespace

std::string nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> buffer;
  std::size_t kept = 0;    // bytes before it are in out
  std::size_t stable = 0;  // the last character that an accent may join
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = decode_utf8(text.substr(at));
    if (is_stable(step.code_point)) {
      // No accent joins the characters of the table.
      stable = step.code_point < kFirstUnstable ? at : at + step.length;
      at += step.length;
      continue;
    }
    // From there to the next stable character.
    const std::size_t first = std::max(stable, kept);
    out.append(text, kept, first - kept);
    std::size_t last = at;
    while (last < text.size()) {
      const Utf8Step next = decode_utf8(text.substr(last));
      if (is_stable(next.code_point)) break;
      last += next.length;
    }
    append_normalized(text.substr(first, last - first), buffer, out);
    kept = at = last;
  }
  return out.append(text, kept);
}

}  // namespace thalweg::text
