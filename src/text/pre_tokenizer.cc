#include "text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <new>

#include "text/utf8.h"
#include "thalweg/error.h"

namespace thalweg::text {
namespace {

// Far more steps than a word needs, and few enough that a hostile pattern fails within seconds.
constexpr std::uint64_t kStepsOfAMatch = 10'000'000;
constexpr std::uint32_t kHeapOfAMatch = 64U << 10;  // KiB
constexpr std::size_t kLongestPattern = 16U << 10;

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

template <typename T>
std::unique_ptr<T, Free> own(T* made) {
  if (made == nullptr) throw std::bad_alloc();
  return std::unique_ptr<T, Free>(made);
}

const PCRE2_UCHAR* units(std::string_view text) {
  static const PCRE2_UCHAR nothing = 0;
  return text.empty() ? &nothing : reinterpret_cast<const PCRE2_UCHAR*>(text.data());
}

std::string describe(int code) {
  std::array<PCRE2_UCHAR, 256> message{};
  pcre2_get_error_message(code, message.data(), message.size());
  return reinterpret_cast<const char*>(message.data());
}

}  // namespace

struct PreTokenizer::Code {
  std::unique_ptr<pcre2_code, Free> pattern;
};

PreTokenizer::PreTokenizer(std::string_view pattern) {
  if (pattern.empty()) return;
  const std::string translated = to_pcre2(pattern);
  const auto context = own(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_max_pattern_length(context.get(), kLongestPattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_ = std::make_unique<Code>();
  code_->pattern.reset(pcre2_compile(units(translated), translated.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE, &error,
                                     &offset, context.get()));
  if (!code_->pattern) {
    throw Error("tokenizer", "pre_tokenizer", "a regular expression",
                "'" + std::string(pattern.substr(0, 200)) + "': " + describe(error));
  }
  // Where there is no JIT, pcre2_match interprets.
  pcre2_jit_compile(code_->pattern.get(), PCRE2_JIT_COMPLETE);
}

PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

void PreTokenizer::split(std::string_view text, const std::function<void(std::string_view)>& take) const {
  const auto give = [&](std::size_t first, std::size_t last) {
    if (first < last) take(text.substr(first, last - first));
  };
  if (!code_) return give(0, text.size());

  const auto context = own(pcre2_match_context_create(nullptr));
  // Each alternative scans a run of blanks once, so the limit grows with the text.
  const std::uint64_t steps = kStepsOfAMatch + 8 * static_cast<std::uint64_t>(text.size());
  pcre2_set_match_limit(context.get(), static_cast<std::uint32_t>(
                                           std::min<std::uint64_t>(steps, std::numeric_limits<std::uint32_t>::max())));
  pcre2_set_heap_limit(context.get(), kHeapOfAMatch);
  const auto data = own(pcre2_match_data_create_from_pattern(code_->pattern.get(), nullptr));
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
  const auto match = [&](std::size_t from, std::uint32_t options) {
    return pcre2_match(code_->pattern.get(), units(text), text.size(), from, PCRE2_NO_UTF_CHECK | options, data.get(),
                       context.get());
  };

  std::size_t given = 0;
  for (std::size_t from = 0; from < text.size();) {
    int found = match(from, 0);
    // JIT code has 32 KiB of stack; the interpreter keeps its state on the heap.
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(from, PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) throw Error("tokenizer", "pre_tokenizer", "a match within its limits", describe(found));
    const std::size_t first = bounds[0];
    const std::size_t last = bounds[1];
    give(given, first);
    give(first, last);
    given = last;
    from = last > first || last == text.size() ? last : last + decode_utf8(text.substr(last)).length;
  }
  give(given, text.size());
}

}  // namespace thalweg::text
