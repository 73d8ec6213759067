#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

// The standard streams, any of which may be closed, full or a pipe that nobody reads. What stderr cannot take is lost
// and stops nothing; what stdout cannot take is remembered, and the command ends with an error.
namespace thalweg::app {

// The program's first call. Opens what the caller closed, so that no file of ours gets the number of a standard stream;
// a pipe that is closed, or a file at its limit, fails the write instead of ending the process.
void prepare_streams();

// Whether stdout took it, and all before it.
bool write_output(std::string_view text) noexcept;
bool write_now(std::string_view text) noexcept;  // and flushes
void write_note(std::string_view text) noexcept;

template <class... T>
void print(fmt::format_string<T...> format, T&&... values) {
  write_output(fmt::format(format, std::forward<T>(values)...));
}

// To stderr.
template <class... T>
void note(fmt::format_string<T...> format, T&&... values) {
  write_note(fmt::format(format, std::forward<T>(values)...));
}

// Flushes stdout; throws if it did not take everything.
void flush_output();

}  // namespace thalweg::app
