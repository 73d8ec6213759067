#include "server/openai_format.h"

#include <chrono>
#include <cstdio>
#include <random>

#include "server/bad_request.h"
#include "server/fields.h"

namespace thalweg::server {

std::string model_name_of(const ApiCall& call) {
  const std::string* named = string_field(call.body, "model");
  return named != nullptr ? *named : call.model_name;
}

std::string openai_error(int status, const std::string& message, const std::string& parameter) {
  const char* type = status == 401   ? "authentication_error"
                     : status == 429 ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  const Json error = {{"message", message},
                      {"type", type},
                      {"param", parameter.empty() ? Json() : Json(parameter)},
                      {"code", status == 401 ? Json("invalid_api_key") : Json()}};
  return dump({{"error", error}});
}

std::string new_id(const char* prefix) {
  std::random_device random;
  char text[48];
  std::snprintf(text, sizeof text, "%s%08x%08x%08x", prefix, random(), random(), random());
  return text;
}

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void refuse_unsupported_sampling(const Json& body) {
  for (const char* name : {"presence_penalty", "frequency_penalty"}) {
    if (number_field(body, name, -2, 2).value_or(0) != 0) {
      throw BadRequest(std::string("'") + name + "' is not supported; there is repetition_penalty", name);
    }
  }
  if (const Json* bias = object_field(body, "logit_bias"); bias != nullptr && !bias->empty()) {
    throw BadRequest("'logit_bias' is not supported", "logit_bias");
  }
}

Json openai_usage(std::span<const Choice> choices) {
  const Usage usage = total_usage(choices);
  std::int64_t reasoning = 0;
  for (const Choice& choice : choices) reasoning += choice.reasoning_tokens;
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.generated_tokens},
          {"total_tokens", usage.prompt_tokens + usage.generated_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning}}}};
}

Json logprob_entry(const Model& model, const TokenLogprobs::Entry& entry) {
  const std::string bytes = model.token_bytes(entry.token);
  Json numbers = Json::array();
  for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
  return {{"token", bytes}, {"logprob", entry.logprob}, {"bytes", std::move(numbers)}};
}

Json logprobs_entry(const Model& model, const TokenLogprobs& logprobs) {
  Json entry = logprob_entry(model, logprobs.chosen);
  Json likeliest = Json::array();
  for (const TokenLogprobs::Entry& other : logprobs.likeliest) likeliest.push_back(logprob_entry(model, other));
  entry["top_logprobs"] = std::move(likeliest);
  return entry;
}

std::string content_text(const Json& message, const char* name) {
  const Json* content = find_field(message, name);
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    throw BadRequest(std::string("'") + name + "' must be a text or a list of parts", name);
  }
  std::string text;
  for (const Json& part : *content) {
    const std::string& type = required_string(part, "type");
    if (type != "text" && type != "input_text" && type != "output_text") {
      throw BadRequest("this model reads text, and no part of type '" + type + "'", name);
    }
    text += required_string(part, "text");
  }
  return text;
}

std::optional<bool> think_of_effort(const Json& options, const char* name) {
  const std::string* effort = choice_field(options, name, {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
  return effort != nullptr && *effort == "none" ? std::optional(false) : std::nullopt;
}

void apply_format(const Json& format, ChatCall& chat) {
  const std::string& type = required_string(format, "type");
  choice_field(format, "type", {"text", "json_object", "json_schema"});
  if (type == "text") return;
  chat.json = true;
  if (type == "json_object") return;
  const Json* nested = object_field(format, "json_schema");
  const Json* schema = object_field(nested != nullptr ? *nested : format, "schema");
  if (schema != nullptr) chat.schema = dump(*schema);
}

std::string sse_event(const char* name, const Json& data) {
  std::string text;
  if (name != nullptr) text.append("event: ").append(name).append("\n");
  return text.append("data: ").append(dump(data)).append("\n\n");
}

}  // namespace thalweg::server
