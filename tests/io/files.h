#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "io/mapped_file.h"
#include "thalweg/error.h"
#include "thalweg/tensor.h"

namespace thalweg::io {

// A folder that is removed at the end of the test.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "thalweg-io-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot make " << name;
    path_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string operator/(const std::string& file) const { return (path_ / file).string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::string& path, std::string_view content) {
  std::ofstream stream(path, std::ios::binary);
  stream.write(content.data(), static_cast<std::streamsize>(content.size()));
  EXPECT_TRUE(stream) << path;
}

inline std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline std::string golden(const std::string& file) {
  return (std::filesystem::path(THALWEG_TEST_DIR) / "io" / "goldens" / file).string();
}

inline Bytes as_bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

// Byte i of tensor t in the goldens.
inline std::string pattern(std::size_t tensor, std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>((7 * i + 13 * tensor + 1) % 256);
  return bytes;
}

inline std::string_view content(const ConstTensor& tensor) {
  return {static_cast<const char*>(tensor.data), static_cast<std::size_t>(bytes_of(tensor.dtype, tensor.size()))};
}

// The call throws an Error about `argument` whose message holds each of `parts`.
template <class Call>
void expect_error(Call&& call, std::string_view argument, std::initializer_list<std::string_view> parts) {
  try {
    call();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    EXPECT_EQ(error.argument(), argument) << message;
    for (const std::string_view part : parts) {
      EXPECT_NE(message.find(part), std::string_view::npos) << message << "\n  lacks: " << part;
    }
    return;
  }
  ADD_FAILURE() << "no error about " << argument;
}

}  // namespace thalweg::io
