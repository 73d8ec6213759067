#include "text/tokenizer_json.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "thalweg/error.h"

namespace thalweg::text {
namespace {

using Json = nlohmann::json;

const Json kNull;

// Ids may leave holes, but no more than the size of the file explains.
constexpr std::uint64_t kHoles = 1024;

class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  TokenizerData read(std::string_view text) {
    const Json file = parse(text);
    check(file.is_object(), "file", "an object", file.type_name());
    data_.nfc = read_normalizer(at(file, "normalizer"), "normalizer");
    read_pre_tokenizer(at(file, "pre_tokenizer"));
    expect_byte_level(at(file, "post_processor"), "post_processor");
    expect_byte_level(at(file, "decoder"), "decoder");
    const Json& model = at(file, "model");
    const Json& added = at(file, "added_tokens");
    check(added.is_null() || added.is_array(), "added_tokens", "an array", added.type_name());
    check(model.is_object(), "model", "an object", model.type_name());
    read_options(model);
    read_vocabulary(at(model, "vocab"), added.size());
    read_merges(at(model, "merges"));
    for (std::size_t i = 0; i < added.size(); ++i) read_added(added[i], "added_tokens[" + std::to_string(i) + "]");
    return std::move(data_);
  }

 private:
  [[noreturn]] void refuse(const std::string& argument, std::string_view expected, std::string_view given) const {
    throw Error(name_, argument, expected, given);
  }
  void check(bool good, const std::string& argument, std::string_view expected, std::string_view given) const {
    if (!good) refuse(argument, expected, given);
  }

  Json parse(std::string_view text) const {
    try {
      return Json::parse(text);
    } catch (const Json::exception& error) {
      refuse("file", "JSON", error.what());
    }
  }

  // null where there is no such key.
  static const Json& at(const Json& object, const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return object.is_object() && found != object.end() ? *found : kNull;
  }

  std::string string_at(const Json& object, const char* key, const std::string& where) const {
    const Json& value = at(object, key);
    check(value.is_string(), where + "." + key, "a string", value.type_name());
    return value.get<std::string>();
  }

  bool bool_at(const Json& object, const char* key, bool otherwise, const std::string& where) const {
    const Json& value = at(object, key);
    if (value.is_null()) return otherwise;
    check(value.is_boolean(), where + "." + key, "true or false", value.type_name());
    return value.get<bool>();
  }

  void expect_bool(const Json& object, const char* key, bool otherwise, bool expected, const std::string& where) const {
    check(bool_at(object, key, otherwise, where) == expected, where + "." + key, expected ? "true" : "false",
          expected ? "false" : "true");
  }

  std::string type_at(const Json& object, const std::string& where) const {
    check(object.is_object(), where, "an object", object.type_name());
    return string_at(object, "type", where);
  }

  std::uint64_t id_of(const Json& value, const std::string& where) const {
    check(value.is_number_unsigned(), where, "a token's id", value.is_number() ? "another number" : value.type_name());
    const auto id = value.get<std::uint64_t>();
    check(id < id_limit_, where, "an id below " + std::to_string(id_limit_), std::to_string(id));
    return id;
  }

  bool read_normalizer(const Json& normalizer, const std::string& where) const {
    if (normalizer.is_null()) return false;
    const std::string type = type_at(normalizer, where);
    if (type == "NFC") return true;
    check(type == "Sequence", where + ".type", "NFC, or no normalizer", type);
    const Json& list = at(normalizer, "normalizers");
    check(list.is_array(), where + ".normalizers", "an array", list.type_name());
    for (const Json& one : list) {
      const std::string inner = type_at(one, where + ".normalizers");
      check(inner == "NFC", where + ".normalizers", "NFC", inner);
    }
    return !list.empty();
  }

  void read_pre_tokenizer(const Json& pre) {
    const std::string where = "pre_tokenizer";
    const std::string type = type_at(pre, where);
    if (type == "ByteLevel") {
      expect_bool(pre, "add_prefix_space", true, false, where);
      data_.pre = bool_at(pre, "use_regex", true, where) ? "gpt-2" : "none";
      return;
    }
    check(type == "Sequence", where + ".type", "ByteLevel, or a Sequence of Split and ByteLevel", type);
    const Json& list = at(pre, "pretokenizers");
    check(list.is_array() && list.size() == 2, where + ".pretokenizers", "Split and ByteLevel",
          list.is_array() ? std::to_string(list.size()) + " entries" : list.type_name());
    read_split(list[0], where + ".pretokenizers[0]");
    const std::string second = where + ".pretokenizers[1]";
    const std::string second_type = type_at(list[1], second);
    check(second_type == "ByteLevel", second + ".type", "ByteLevel", second_type);
    expect_bool(list[1], "add_prefix_space", true, false, second);
    expect_bool(list[1], "use_regex", true, false, second);
  }

  void read_split(const Json& split, const std::string& where) {
    const std::string type = type_at(split, where);
    check(type == "Split", where + ".type", "Split", type);
    const std::string behavior = string_at(split, "behavior", where);
    check(behavior == "Isolated", where + ".behavior", "Isolated", behavior);
    expect_bool(split, "invert", false, false, where);
    const Json& pattern = at(split, "pattern");
    check(pattern.is_object(), where + ".pattern", "an object", pattern.type_name());
    data_.pattern = string_at(pattern, "Regex", where + ".pattern");
    check(!data_.pattern.empty(), where + ".pattern.Regex", "a regular expression", "an empty string");
    data_.pre = "regex";
    for (const char* known : {"qwen2", "qwen35", "gpt-2"}) {
      if (data_.pattern == pre_tokenizer_pattern(known)) data_.pre = known;
    }
  }

  // ByteLevel neither adds nor changes tokens; its setting for offsets is not used.
  void expect_byte_level(const Json& step, const std::string& where) const {
    if (step.is_null()) return;
    const std::string type = type_at(step, where);
    check(type == "ByteLevel", where + ".type", "ByteLevel, or none", type);
  }

  void read_options(const Json& model) {
    const std::string type = string_at(model, "type", "model");
    check(type == "BPE", "model.type", "BPE", type);
    const Json& dropout = at(model, "dropout");
    check(dropout.is_null() || dropout == 0, "model.dropout", "none", dropout.is_number() ? "some" : "another type");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& mark = at(model, key);
      check(mark.is_null() || (mark.is_string() && mark.get_ref<const std::string&>().empty()),
            std::string("model.") + key, "none", "some");
    }
    expect_bool(model, "byte_fallback", false, false, "model");
    data_.ignore_merges = bool_at(model, "ignore_merges", false, "model");
  }

  void put(std::uint64_t id, const std::string& token, TokenType type, const std::string& where) {
    if (id >= data_.tokens.size()) {
      data_.tokens.resize(id + 1);
      data_.token_types.resize(id + 1, static_cast<int>(TokenType::kUnused));
    }
    std::string& slot = data_.tokens[id];
    check(slot.empty() || slot == token, where, "an id for each token",
          "'" + slot + "' and '" + token + "' with id " + std::to_string(id));
    slot = token;
    data_.token_types[id] = static_cast<int>(type);
  }

  void read_vocabulary(const Json& vocabulary, std::size_t added) {
    check(vocabulary.is_object(), "model.vocab", "an object", vocabulary.type_name());
    id_limit_ = 2 * (vocabulary.size() + added) + kHoles;
    for (const auto& [token, value] : vocabulary.items()) {
      const std::string where = "model.vocab['" + token + "']";
      check(!token.empty(), where, "a token", "an empty one");
      const std::uint64_t id = id_of(value, where);
      put(id, token, TokenType::kNormal, where);
      ids_.emplace(data_.tokens[id], id);
    }
  }

  void read_merges(const Json& merges) {
    check(merges.is_array(), "model.merges", "an array", merges.type_name());
    data_.merges.reserve(merges.size());
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const Json& merge = merges[i];
      const std::string where = "model.merges[" + std::to_string(i) + "]";
      if (merge.is_string()) {
        data_.merges.push_back(merge.get<std::string>());
        continue;
      }
      check(merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(), where,
            "two tokens, or a string of them", merge.type_name());
      data_.merges.push_back(merge[0].get<std::string>() + ' ' + merge[1].get<std::string>());
    }
  }

  void read_added(const Json& token, const std::string& where) {
    check(token.is_object(), where, "an object", token.type_name());
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) expect_bool(token, flag, false, false, where);
    const std::string content = string_at(token, "content", where);
    if (content.empty()) return;
    const std::uint64_t id = id_of(at(token, "id"), where + ".id");
    const auto known = ids_.find(content);
    check(known == ids_.end() || known->second == id, where + ".id", "the id that the token has elsewhere in the file",
          std::to_string(id));
    const bool special = bool_at(token, "special", false, where);
    put(id, content, special ? TokenType::kControl : TokenType::kUserDefined, where);
    ids_.emplace(content, id);
    if (bool_at(token, "normalized", !special, where)) data_.normalized.push_back(static_cast<std::int32_t>(id));
    if (content == "<|im_end|>" || (content == "<|endoftext|>" && data_.eos < 0)) data_.eos = static_cast<int>(id);
  }

  const std::string& name_;
  std::uint64_t id_limit_ = 0;
  std::unordered_map<std::string, std::uint64_t> ids_;
  TokenizerData data_;
};

}  // namespace

TokenizerData parse_tokenizer_json(std::string_view json, const std::string& name) { return Reader(name).read(json); }

TokenizerData read_tokenizer_json(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  // A folder opens like a file, and reads like an empty one.
  if (!file || !(text << file.rdbuf())) throw Error(path, "file", "a tokenizer.json that can be read", "none");
  return parse_tokenizer_json(text.str(), path);
}

}  // namespace thalweg::text
