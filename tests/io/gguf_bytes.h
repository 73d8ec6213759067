#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "io/gguf_metadata.h"

namespace thalweg::io {

// Builds the bytes of a GGUF file, valid or not, independently of GgufWriter.
class GgufBytes {
 public:
  explicit GgufBytes(std::uint32_t version = 3, std::uint64_t tensors = 0, std::uint64_t entries = 0) {
    bytes_ = "GGUF";
    put(version).put(tensors).put(entries);
  }

  template <class T>
  GgufBytes& put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes_ += reinterpret_cast<const char*>(&value)[i];
    return *this;
  }

  GgufBytes& text(std::string_view value) {
    put(std::uint64_t{value.size()});
    bytes_ += value;
    return *this;
  }

  GgufBytes& key(std::string_view name, GgufType type) { return text(name).put(static_cast<std::uint32_t>(type)); }

  template <class T>
  GgufBytes& entry(std::string_view name, GgufType type, T value) {
    return key(name, type).put(value);
  }

  GgufBytes& entry(std::string_view name, std::string_view value) { return key(name, GgufType::kString).text(value); }

  GgufBytes& array(std::string_view name, GgufType type, std::uint64_t count) {
    return key(name, GgufType::kArray).put(static_cast<std::uint32_t>(type)).put(count);
  }

  // extents: innermost first, as in the file.
  GgufBytes& tensor(std::string_view name, const std::vector<std::uint64_t>& extents, std::uint32_t type,
                    std::uint64_t offset) {
    text(name).put(static_cast<std::uint32_t>(extents.size()));
    for (const std::uint64_t extent : extents) put(extent);
    return put(type).put(offset);
  }

  GgufBytes& align(std::size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }

  GgufBytes& raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace thalweg::io
