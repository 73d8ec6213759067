#include <cstdint>
#include <utility>

#include "server/anthropic.h"
#include "server/openai_format.h"

namespace thalweg::server {
namespace {

Json usage_of(std::int64_t prompt, std::int64_t cached, std::int64_t generated) {
  return {{"input_tokens", prompt - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", generated}};
}

Json usage_of(const Usage& usage) { return usage_of(usage.prompt_tokens, usage.cached_tokens, usage.generated_tokens); }

const char* stop_reason_of(const Choice& choice) {
  if (choice.finish == FinishReason::kLength) return "max_tokens";
  if (choice.finish == FinishReason::kStop) return "stop_sequence";
  return choice.has_calls() ? "tool_use" : "end_turn";
}

Json stop_of(const Choice& choice) {
  const bool stopped = choice.finish == FinishReason::kStop;
  return {{"stop_reason", stop_reason_of(choice)}, {"stop_sequence", stopped ? Json(choice.stop) : Json()}};
}

// A content block, empty or with what the model wrote.
Json block_of(const Block& block, const std::string& text) {
  switch (block.kind) {
    case Block::Kind::kReasoning:
      return {{"type", "thinking"}, {"thinking", text}, {"signature", ""}};
    case Block::Kind::kCall: {
      Json input = Json::parse(text, nullptr, false);
      if (!input.is_object()) input = Json::object();  // cut off by max_tokens, or not there yet
      return {{"type", "tool_use"}, {"id", new_id("toolu_")}, {"name", block.name}, {"input", std::move(input)}};
    }
    case Block::Kind::kContent:
      break;
  }
  return {{"type", "text"}, {"text", text}};
}

class MessageFormat : public BlockFormat {
 public:
  explicit MessageFormat(const ApiCall& call) : id_(new_id("msg_")), name_(model_name_of(call)) {}

  std::string body(std::span<const Choice> choices) override {
    const Choice& choice = choices.front();
    Json content = Json::array();
    for (const Block& block : choice.blocks) content.push_back(block_of(block, block.text));
    return dump(message(std::move(content), stop_of(choice), usage_of(choice.usage)));
  }
  std::string error(int status, const std::string& message) override { return anthropic_error(status, message); }

  std::string begin(std::span<const Choice> choices) override {
    const Json stop = {{"stop_reason", nullptr}, {"stop_sequence", nullptr}};
    const Json usage = usage_of(choices.front().prompt_tokens, 0, 0);
    return event("message_start", {{"message", message(Json::array(), stop, usage)}}) + event("ping", Json::object());
  }
  std::string end(std::span<const Choice> choices) override {
    const Choice& choice = choices.front();
    return event("message_delta", {{"delta", stop_of(choice)}, {"usage", usage_of(choice.usage)}}) +
           event("message_stop", Json::object());
  }
  std::string fail(std::span<const Choice>, const std::string& message) override {
    return "event: error\ndata: " + anthropic_error(500, message) + "\n\n";
  }

 protected:
  std::string begin_block(std::size_t index, const Block& block) override {
    return event("content_block_start", {{"index", index}, {"content_block", block_of(block, "")}});
  }
  std::string block_text(std::size_t index, const Block& block, const AnswerDelta::Part& part) override {
    switch (block.kind) {
      case Block::Kind::kReasoning:
        return delta_event(index, "thinking_delta", "thinking", part.text);
      case Block::Kind::kCall:
        return delta_event(index, "input_json_delta", "partial_json", part.text);
      case Block::Kind::kContent:
        break;
    }
    return delta_event(index, "text_delta", "text", part.text);
  }
  // The signature of thoughts is empty: nobody checks it.
  std::string end_block(std::size_t index, const Block& block, bool) override {
    std::string events;
    if (block.kind == Block::Kind::kReasoning) events = delta_event(index, "signature_delta", "signature", "");
    return events + event("content_block_stop", {{"index", index}});
  }

 private:
  static std::string event(const char* type, const Json& fields) {
    Json data = {{"type", type}};
    data.update(fields);
    return sse_event(type, data);
  }

  static std::string delta_event(std::size_t index, const char* type, const char* key, const std::string& text) {
    return event("content_block_delta", {{"index", index}, {"delta", {{"type", type}, {key, text}}}});
  }

  Json message(Json content, const Json& stop, Json usage) const {
    Json all = {
        {"id", id_}, {"type", "message"}, {"role", "assistant"}, {"model", name_}, {"content", std::move(content)}};
    all.update(stop);
    all["usage"] = std::move(usage);
    return all;
  }

  const std::string id_;
  const std::string name_;
};

}  // namespace

std::string anthropic_error(int status, const std::string& message) {
  const char* type = status == 401   ? "authentication_error"
                     : status == 404 ? "not_found_error"
                     : status == 413 ? "request_too_large"
                     : status == 429 ? "rate_limit_error"
                     : status == 503 ? "overloaded_error"
                     : status >= 500 ? "api_error"
                                     : "invalid_request_error";
  return dump({{"type", "error"}, {"error", {{"type", type}, {"message", message}}}});
}

std::unique_ptr<AnswerFormat> message_format(const ApiCall& call) { return std::make_unique<MessageFormat>(call); }

}  // namespace thalweg::server
