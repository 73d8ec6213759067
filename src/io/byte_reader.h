#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "io/mapped_file.h"
#include "thalweg/error.h"

namespace thalweg::io {

// Reads little-endian values in order and never past the end. `subject` names in errors what was read.
class ByteReader {
 public:
  ByteReader(Bytes bytes, std::string path) : bytes_(bytes), path_(std::move(path)) {}

  void set_subject(std::string subject) { subject_ = std::move(subject); }
  const std::string& subject() const { return subject_; }

  std::uint64_t offset() const { return offset_; }
  std::uint64_t remaining() const { return bytes_.size() - offset_; }

  template <class T>
  T read() {
    static_assert(std::is_arithmetic_v<T>);
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  Bytes take(std::uint64_t count) {
    if (count > remaining()) {
      fail(std::to_string(count) + " more bytes",
           "the file's end after " + std::to_string(remaining()) + " (it has " + std::to_string(bytes_.size()) + ")");
    }
    const Bytes taken = bytes_.subspan(static_cast<std::size_t>(offset_), static_cast<std::size_t>(count));
    offset_ += count;
    return taken;
  }

  // A count of elements of at least `least` bytes each. Refuses a count that the rest of the file cannot hold, before
  // memory is reserved for it.
  std::size_t check_count(std::uint64_t count, std::uint64_t least, std::string_view things) {
    if (count > remaining() / least) {
      fail("at most " + std::to_string(remaining() / least) + " " + std::string(things) + " in the rest of the file",
           std::to_string(count));
    }
    return static_cast<std::size_t>(count);
  }

  [[noreturn]] void fail(std::string_view expected, std::string_view given) const {
    throw Error(path_, subject_, expected, given);
  }

 private:
  Bytes bytes_;
  std::size_t offset_ = 0;
  std::string path_;
  std::string subject_ = "header";
};

}  // namespace thalweg::io
