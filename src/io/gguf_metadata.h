#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace thalweg::io {

// Types of metadata values, numbered as in the file.
enum class GgufType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

inline constexpr std::uint32_t kNumGgufTypes = 13;

// "u32", "string".
std::string_view gguf_type_name(GgufType type);

// An array whose elements have one type. Elements may be arrays, each with its own type. The alternatives are in the
// order of GgufType.
struct GgufArray {
  using Elements = std::variant<std::vector<std::uint8_t>, std::vector<std::int8_t>, std::vector<std::uint16_t>,
                                std::vector<std::int16_t>, std::vector<std::uint32_t>, std::vector<std::int32_t>,
                                std::vector<float>, std::vector<bool>, std::vector<std::string>, std::vector<GgufArray>,
                                std::vector<std::uint64_t>, std::vector<std::int64_t>, std::vector<double>>;
  Elements elements;

  GgufType type() const { return static_cast<GgufType>(elements.index()); }  // of the elements
  std::size_t size() const;
  friend bool operator==(const GgufArray& a, const GgufArray& b) { return a.elements == b.elements; }
};

// In the order of GgufType. Strings may hold any bytes.
using GgufValue = std::variant<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t, std::int32_t,
                               float, bool, std::string, GgufArray, std::uint64_t, std::int64_t, double>;

inline GgufType gguf_type(const GgufValue& value) { return static_cast<GgufType>(value.index()); }

// "u32", "array of 3 string".
std::string describe_type(const GgufValue& value);

// The metadata of a file: values by key, in the file's order. The typed accessors throw Error that names file and key,
// what was expected and what was found. Integers are read from any integer type that holds the value, real numbers from
// any number: writers differ in the width they choose.
class GgufMetadata {
 public:
  using Entry = std::pair<std::string, GgufValue>;

  GgufMetadata() = default;
  explicit GgufMetadata(std::string path) : path_(std::move(path)) {}

  const std::vector<Entry>& entries() const { return entries_; }

  bool has(std::string_view key) const { return find(key) != nullptr; }
  const GgufValue* find(std::string_view key) const;  // null if the key is missing

  std::int64_t integer(std::string_view key) const;
  std::int64_t integer(std::string_view key, std::int64_t fallback) const;  // `fallback` only if the key is missing
  double number(std::string_view key) const;
  double number(std::string_view key, double fallback) const;
  bool boolean(std::string_view key) const;
  bool boolean(std::string_view key, bool fallback) const;
  const std::string& string(std::string_view key) const;
  std::string string(std::string_view key, std::string_view fallback) const;

  bool is_array(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<float> numbers(std::string_view key) const;
  std::vector<bool> booleans(std::string_view key) const;
  const std::vector<std::string>& strings(std::string_view key) const;

  // Sets the value of a key, whose position in the file's order does not change if it exists.
  void set(std::string key, GgufValue value);
  // Adds a new key; returns false if it exists.
  bool add(std::string key, GgufValue value);
  void erase(std::string_view key);

 private:
  const GgufValue& at(std::string_view key, std::string_view expected) const;
  [[noreturn]] void fail(std::string_view key, std::string_view expected, std::string_view given) const;
  const GgufArray& array(std::string_view key, std::string_view expected) const;

  std::string path_ = "metadata";  // for messages
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

}  // namespace thalweg::io
