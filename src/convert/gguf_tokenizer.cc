#include <algorithm>
#include <filesystem>

#include "checkpoint/tokenizer.h"
#include "convert/convert.h"
#include "io/printable.h"
#include "text/tokenizer_json.h"
#include "thalweg/error.h"

namespace thalweg::convert {
namespace {

namespace fs = std::filesystem;

// A GGUF file stores the name of its pattern, not the pattern. It implies that text is normalized to NFC, that words
// are merged, and that added tokens are matched before normalization; other settings cannot be expressed.
void refuse_inexpressible(const text::TokenizerData& data, const std::string& path) {
  const auto require = [&](bool condition, std::string_view key, std::string_view expected, const std::string& given) {
    if (!condition) throw Error(path, key, std::string(expected) + ", the only one that GGUF can express", given);
  };
  require(data.pre != "regex" && data.pre != "none", "pre_tokenizer", "the pattern of Qwen3-Next, Qwen3.5 or GPT-2",
          data.pre == "none" ? "none" : io::printable(data.pattern));
  require(data.nfc, "normalizer", "NFC", "none");
  require(!data.ignore_merges, "model.ignore_merges", "false", "true");
  if (data.normalized.empty()) return;
  const std::string& token = data.tokens[static_cast<std::size_t>(data.normalized.front())];
  require(false, "added token " + io::printable(token), "\"normalized\": false", "true");
}

// Names every id of the model, including those that the tokenizer does not use.
void fill_up(text::TokenizerData& data, std::size_t vocabulary, const std::string& path) {
  if (data.tokens.size() > vocabulary) {
    throw Error(path, "token " + io::printable(data.tokens.back()), "an id from 0 to " + std::to_string(vocabulary - 1),
                std::to_string(data.tokens.size() - 1));
  }
  data.tokens.resize(vocabulary);
  data.token_types.resize(vocabulary, static_cast<int>(text::TokenType::kUnused));
  for (std::size_t id = 0; id < vocabulary; ++id) {
    if (data.tokens[id].empty()) data.tokens[id] = "[PAD" + std::to_string(id) + "]";
  }
}

// tokenizer_config.json has a token as a string, as an object with its content, or as null.
std::string token_setting(const io::JsonObject& settings, const char* key) {
  return settings.is_object(key) ? settings.object(key).string("content", "") : settings.string(key, "");
}

void add_special(io::GgufMetadata& metadata, const io::JsonObject& settings, const text::Tokenizer& tokenizer,
                 const ModelConfig& config) {
  const auto add = [&](const char* setting, const char* key) {
    const std::int32_t id = tokenizer.find(token_setting(settings, setting));
    if (id >= 0) metadata.set(key, static_cast<std::uint32_t>(id));
    return id >= 0;
  };
  constexpr const char* kEnd = "tokenizer.ggml.eos_token_id";
  std::vector<std::int32_t> others = config.end_tokens;
  if (add("eos_token", kEnd)) {
    std::erase(others, static_cast<std::int32_t>(metadata.integer(kEnd)));
  } else if (!others.empty()) {
    metadata.set(kEnd, static_cast<std::uint32_t>(others.front()));
    others.erase(others.begin());
  } else if (tokenizer.eos() >= 0) {
    metadata.set(kEnd, static_cast<std::uint32_t>(tokenizer.eos()));
  }
  // A second end token: of a message if the first one ends a text, else of a text.
  if (!others.empty()) metadata.set("tokenizer.ggml.eot_token_id", static_cast<std::uint32_t>(others.front()));
  add("pad_token", "tokenizer.ggml.padding_token_id");
  add("bos_token", "tokenizer.ggml.bos_token_id");
  metadata.set("tokenizer.ggml.add_bos_token", settings.boolean("add_bos_token", false));
}

}  // namespace

bool add_tokenizer(io::GgufMetadata& metadata, const std::string& folder, const ModelConfig& config) {
  const std::string path = (fs::path(folder) / "tokenizer.json").string();
  if (!fs::exists(path)) return false;
  text::TokenizerData data = text::read_tokenizer_json(path);
  refuse_inexpressible(data, path);
  fill_up(data, static_cast<std::size_t>(config.vocabulary), path);
  metadata.set("tokenizer.ggml.model", std::string("gpt2"));
  metadata.set("tokenizer.ggml.pre", data.pre);
  metadata.set("tokenizer.ggml.tokens", io::GgufArray{data.tokens});
  metadata.set("tokenizer.ggml.token_type",
               io::GgufArray{std::vector<std::int32_t>(data.token_types.begin(), data.token_types.end())});
  metadata.set("tokenizer.ggml.merges", io::GgufArray{data.merges});

  const std::string beside = (fs::path(folder) / "tokenizer_config.json").string();
  const io::JsonObject settings =
      fs::exists(beside) ? io::JsonObject::read(beside) : io::JsonObject::parse("{}", beside);
  add_special(metadata, settings, text::Tokenizer(std::move(data)), config);
  if (const std::string chat = checkpoint::read_chat_template(folder); !chat.empty())
    metadata.set("tokenizer.chat_template", chat);
  return true;
}

}  // namespace thalweg::convert
