#include "checkpoint/tokenizer.h"

#include <filesystem>

#include "checkpoint/config_checks.h"
#include "io/mapped_file.h"
#include "io/printable.h"
#include "text/chat.h"
#include "text/tokenizer_json.h"
#include "thalweg/error.h"

namespace thalweg::checkpoint {

std::optional<text::Tokenizer> read_tokenizer(const io::GgufMetadata& metadata, const std::string& path) {
  constexpr std::string_view kModel = "tokenizer.ggml.model";
  if (!metadata.has(kModel)) return std::nullopt;
  const std::string& model = metadata.string(kModel);
  if (model == "none" || model == "no_vocab") return std::nullopt;
  if (model != "gpt2") throw Error(path, kModel, "gpt2 (byte-level BPE), none or no_vocab", io::printable(model));
  text::TokenizerData data;
  data.tokens = metadata.strings("tokenizer.ggml.tokens");
  data.merges = metadata.strings("tokenizer.ggml.merges");
  if (metadata.has("tokenizer.ggml.token_type")) {
    for (std::int64_t type : metadata.integers("tokenizer.ggml.token_type")) {
      data.token_types.push_back(checked_size(type, 0, path, "tokenizer.ggml.token_type"));
    }
  }
  data.pre = metadata.string("tokenizer.ggml.pre");
  constexpr std::string_view kEos = "tokenizer.ggml.eos_token_id";
  if (metadata.has(kEos)) data.eos = checked_size(metadata.integer(kEos), 0, path, kEos);
  return text::Tokenizer(std::move(data));
}

std::optional<text::Tokenizer> read_tokenizer(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "tokenizer.json").string();
  if (!std::filesystem::exists(path)) return std::nullopt;
  return text::Tokenizer(text::read_tokenizer_json(path));
}

std::string read_chat_template(const std::string& folder) {
  const std::filesystem::path path(folder);
  if (std::filesystem::exists(path / "chat_template.jinja")) {
    const io::MappedFile file((path / "chat_template.jinja").string());
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  }
  const std::filesystem::path config = path / "tokenizer_config.json";
  if (!std::filesystem::exists(config)) return {};
  const io::JsonObject object = io::JsonObject::read(config.string());
  // None of these families has a list of named templates.
  return object.is_array("chat_template") ? std::string() : object.string("chat_template", "");
}

void take_end_tokens(ModelConfig& config, const text::Tokenizer& tokenizer) {
  if (tokenizer.size() > static_cast<std::size_t>(config.vocabulary)) {
    throw Error(config.path, "tokenizer", "at most the model's " + std::to_string(config.vocabulary) + " tokens",
                std::to_string(tokenizer.size()));
  }
  for (std::int32_t token : text::stop_tokens(tokenizer)) add_end_token(config, token, "the tokenizer's end tokens");
}

}  // namespace thalweg::checkpoint
