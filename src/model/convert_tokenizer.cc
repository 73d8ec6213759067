#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "io/json_parse.h"
#include "io/mapped_file.h"
#include "io/printable.h"
#include "model/convert.h"
#include "text/pre_tokenizer.h"
#include "thalweg/error.h"

namespace thalweg::model {
namespace {

using nlohmann::json;

// As GGUF numbers them.
enum TokenType : std::int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

std::string_view text_of(const io::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

[[noreturn]] void fail(const std::string& path, std::string_view key, std::string_view expected,
                       std::string_view given) {
  throw Error(path, key, expected, given);
}

const json& member(const json& object, const char* key, const std::string& path) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end()) fail(path, key, "a value", "no such key");
  return *found;
}

// The regular expression by which text is cut into words, wherever it stands; empty if there is none.
std::string split_pattern(const json& node) {
  if (node.is_object()) {
    if (const auto regex = node.find("Regex"); regex != node.end() && regex->is_string()) return *regex;
  }
  if (!node.is_structured()) return {};
  for (const json& inner : node) {
    if (std::string found = split_pattern(inner); !found.empty()) return found;
  }
  return {};
}

// GGUF names the pattern instead of holding it.
std::string pre_tokenizer_name(const json& tokenizer, const std::string& path) {
  const auto found = tokenizer.find("pre_tokenizer");
  const std::string pattern = found == tokenizer.end() ? "" : split_pattern(*found);
  for (const char* name : {"qwen2", "qwen35"}) {
    if (pattern == text::pre_tokenizer_pattern(name)) return name;
  }
  fail(path, "pre_tokenizer", "the pattern of Qwen3-Next or of Qwen3.5",
       pattern.empty() ? "none" : io::printable(pattern));
}

std::size_t token_id(const json& id, std::size_t vocabulary, const std::string& path, const std::string& token) {
  const std::string range = "a number from 0 to " + std::to_string(vocabulary - 1);
  if (!id.is_number_unsigned()) fail(path, "token " + io::printable(token), range, io::json_type_name(id));
  const auto number = id.get<std::uint64_t>();
  if (number >= vocabulary) fail(path, "token " + io::printable(token), range, std::to_string(number));
  return static_cast<std::size_t>(number);
}

struct Tokens {
  std::vector<std::string> texts;
  std::vector<std::int32_t> types;
  std::map<std::string, std::size_t> added;

  void set(std::size_t id, const std::string& text, TokenType type) {
    texts[id] = text;
    types[id] = type;
  }
};

Tokens read_tokens(const json& tokenizer, std::size_t vocabulary, const std::string& path) {
  Tokens tokens;
  tokens.texts.resize(vocabulary);
  tokens.types.assign(vocabulary, kUnused);
  const json& model = member(tokenizer, "model", path);
  if (model.value("type", "BPE") != "BPE") fail(path, "model.type", "BPE", io::printable(model.value("type", "")));
  const json& vocab = member(model, "vocab", path);
  if (!vocab.is_object()) fail(path, "model.vocab", "an object", io::json_type_name(vocab));
  for (const auto& [text, id] : vocab.items()) tokens.set(token_id(id, vocabulary, path, text), text, kNormal);
  if (const auto list = tokenizer.find("added_tokens"); list != tokenizer.end() && list->is_array()) {
    for (const json& token : *list) {
      const json& content = member(token, "content", path);
      if (!content.is_string()) fail(path, "added_tokens.content", "a string", io::json_type_name(content));
      const auto text = content.get<std::string>();
      const std::size_t id = token_id(member(token, "id", path), vocabulary, path, text);
      const auto special = token.find("special");
      const bool control = special != token.end() && special->is_boolean() && special->get<bool>();
      tokens.set(id, text, control ? kControl : kUserDefined);
      tokens.added[text] = id;
    }
  }
  for (std::size_t id = 0; id < vocabulary; ++id) {
    if (tokens.types[id] == kUnused) tokens.texts[id] = "[PAD" + std::to_string(id) + "]";
  }
  return tokens;
}

// "a b", from that or from ["a", "b"].
std::vector<std::string> read_merges(const json& tokenizer, const std::string& path) {
  std::vector<std::string> merges;
  const json& list = member(member(tokenizer, "model", path), "merges", path);
  if (!list.is_array()) fail(path, "model.merges", "an array", io::json_type_name(list));
  for (const json& merge : list) {
    if (merge.is_string()) {
      merges.push_back(merge);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    } else {
      fail(path, "model.merges", "pairs of strings", io::json_type_name(merge));
    }
    if (std::count(merges.back().begin(), merges.back().end(), ' ') != 1) {
      fail(path, "model.merges", "pairs of byte-level tokens", io::printable(merges.back()));
    }
  }
  return merges;
}

// tokenizer_config.json has a token as a string, as an object with its content, or as null.
std::string token_setting(const json& settings, const char* key) {
  const auto found = settings.find(key);
  if (found == settings.end()) return {};
  if (found->is_string()) return *found;
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string()) return (*found)["content"];
  return {};
}

void add_special(io::GgufMetadata& metadata, const json& settings, const Tokens& tokens, const ModelConfig& config) {
  const auto add = [&](const char* setting, const char* key) {
    const auto found = tokens.added.find(token_setting(settings, setting));
    if (found == tokens.added.end()) return false;
    metadata.set(key, static_cast<std::uint32_t>(found->second));
    return true;
  };
  constexpr const char* kEnd = "tokenizer.ggml.eos_token_id";
  std::vector<std::int32_t> others = config.end_tokens;
  if (add("eos_token", kEnd)) {
    std::erase(others, static_cast<std::int32_t>(metadata.integer(kEnd)));
  } else if (!others.empty()) {
    metadata.set(kEnd, static_cast<std::uint32_t>(others.front()));
    others.erase(others.begin());
  }
  // A second end token, of a turn or of a text, whichever the first one is not.
  if (!others.empty()) metadata.set("tokenizer.ggml.eot_token_id", static_cast<std::uint32_t>(others.front()));
  add("pad_token", "tokenizer.ggml.padding_token_id");
  add("bos_token", "tokenizer.ggml.bos_token_id");
  const auto bos = settings.find("add_bos_token");
  metadata.set("tokenizer.ggml.add_bos_token", bos != settings.end() && bos->is_boolean() && bos->get<bool>());
}

}  // namespace

bool add_tokenizer(io::GgufMetadata& metadata, const std::string& folder, const ModelConfig& config) {
  namespace fs = std::filesystem;
  const std::string path = (fs::path(folder) / "tokenizer.json").string();
  if (!fs::exists(path)) return false;
  const io::MappedFile file(path);
  const json tokenizer = io::parse_json(text_of(file), path, "text");
  const Tokens tokens = read_tokens(tokenizer, static_cast<std::size_t>(config.vocabulary), path);
  metadata.set("tokenizer.ggml.model", std::string("gpt2"));
  metadata.set("tokenizer.ggml.pre", pre_tokenizer_name(tokenizer, path));
  metadata.set("tokenizer.ggml.tokens", io::GgufArray{tokens.texts});
  metadata.set("tokenizer.ggml.token_type", io::GgufArray{tokens.types});
  metadata.set("tokenizer.ggml.merges", io::GgufArray{read_merges(tokenizer, path)});

  json settings = json::object();
  if (const fs::path beside = fs::path(folder) / "tokenizer_config.json"; fs::exists(beside)) {
    const io::MappedFile settings_file(beside.string());
    settings = io::parse_json(text_of(settings_file), beside.string(), "text");
  }
  add_special(metadata, settings, tokens, config);
  if (const fs::path beside = fs::path(folder) / "chat_template.jinja"; fs::exists(beside)) {
    const io::MappedFile chat(beside.string());
    metadata.set("tokenizer.chat_template", std::string(text_of(chat)));
  } else if (const auto chat = settings.find("chat_template"); chat != settings.end() && chat->is_string()) {
    metadata.set("tokenizer.chat_template", chat->get<std::string>());
  }
  return true;
}

}  // namespace thalweg::model
