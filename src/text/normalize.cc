#include "text/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "text/utf8.h"

namespace thalweg::text {
namespace {

// Every character below is a starter, is its own normal form and never joins the one before it: the text between two of
// them can be normalized by itself.
constexpr char32_t kFirstUnstable = 0x300;
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
  std::size_t stable = 0;  // the last stable character
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = decode_utf8(text.substr(at));
    if (step.code_point < kFirstUnstable) {
      stable = at;
      at += step.length;
      continue;
    }
    // From the stable character that an accent may join, to the next stable one.
    const std::size_t first = std::max(stable, kept);
    out.append(text, kept, first - kept);
    std::size_t last = at;
    while (last < text.size()) {
      const Utf8Step next = decode_utf8(text.substr(last));
      if (next.code_point < kFirstUnstable) break;
      last += next.length;
    }
    append_normalized(text.substr(first, last - first), buffer, out);
    kept = at = last;
  }
  return out.append(text, kept);
}

}  // namespace thalweg::text
