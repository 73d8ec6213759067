#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace thalweg::io {

// A JSON object of a file: config.json, an index. The typed accessors throw Error that names the file and the key, with
// the keys of the enclosing objects ("rope_parameters.rope_theta"). A value of null counts as missing.
class JsonObject {
 public:
  // Throws Error for text that is not one object, duplicate keys in an object, and values nested more than 64 deep.
  static JsonObject parse(std::string_view text, std::string path);
  static JsonObject read(const std::string& path);

  const std::string& path() const { return path_; }
  std::vector<std::string> keys() const;

  bool has(std::string_view key) const;
  bool is_object(std::string_view key) const;
  bool is_array(std::string_view key) const;

  JsonObject object(std::string_view key) const;
  std::int64_t integer(std::string_view key) const;
  std::int64_t integer(std::string_view key, std::int64_t fallback) const;  // `fallback` only if the key is missing
  double number(std::string_view key) const;
  double number(std::string_view key, double fallback) const;
  bool boolean(std::string_view key) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string string(std::string_view key) const;
  std::string string(std::string_view key, std::string_view fallback) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<std::string> strings(std::string_view key) const;

 private:
  JsonObject(std::shared_ptr<const void> value, std::string path, std::string prefix);
  [[noreturn]] void fail(std::string_view key, std::string_view expected, std::string_view given) const;

  std::shared_ptr<const void> value_;  // nlohmann::json, not included here
  std::string path_;
  std::string prefix_;  // "text_config."
};

}  // namespace thalweg::io
