#include <cstdint>
#include <utility>
#include <vector>

#include "server/fields.h"
#include "server/openai_format.h"
#include "server/responses.h"

namespace thalweg::server {
namespace {

struct ItemId {
  std::string id;
  std::string call_id;  // of a function call
};

Json value_or(const Json& body, const char* name, const Json& otherwise) {
  const Json* field = find_field(body, name);
  return field != nullptr ? *field : otherwise;
}

Json part_of(const Block& block, const std::string& text, Json logprobs) {
  if (block.kind == Block::Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", std::move(logprobs)}};
}

Json logprobs_of(const Model& model, const std::vector<TokenLogprobs>& tokens) {
  Json list = Json::array();
  for (const TokenLogprobs& token : tokens) list.push_back(logprobs_entry(model, token));
  return list;
}

// In the events of a stream the original leaves out the bytes.
Json without_bytes(Json logprobs) {
  for (Json& entry : logprobs) {
    entry.erase("bytes");
    for (Json& other : entry["top_logprobs"]) other.erase("bytes");
  }
  return logprobs;
}

// `content`: the parts of a message or of thoughts.
Json item_of(const Block& block, const ItemId& id, const char* status, Json content, const std::string& arguments) {
  switch (block.kind) {
    case Block::Kind::kReasoning:
      return {{"id", id.id},
              {"type", "reasoning"},
              {"status", status},
              {"summary", Json::array()},
              {"content", std::move(content)}};
    case Block::Kind::kCall:
      return {{"id", id.id},           {"type", "function_call"}, {"status", status},
              {"call_id", id.call_id}, {"name", block.name},      {"arguments", arguments}};
    case Block::Kind::kContent:
      break;
  }
  return {
      {"id", id.id}, {"type", "message"}, {"status", status}, {"role", "assistant"}, {"content", std::move(content)}};
}

// What the response says of the request; it does not change.
Json settings_of(const ApiCall& call) {
  const Json& body = call.body;
  Json settings = {{"model", model_name_of(call)}};
  for (const char* name : {"instructions", "max_output_tokens", "user"}) settings[name] = value_or(body, name, nullptr);
  settings["metadata"] = value_or(body, "metadata", Json::object());
  settings["parallel_tool_calls"] = value_or(body, "parallel_tool_calls", true);
  settings["previous_response_id"] = nullptr;
  settings["reasoning"] = value_or(body, "reasoning", {{"effort", nullptr}, {"summary", nullptr}});
  settings["store"] = false;
  settings["temperature"] = value_or(body, "temperature", 1.0);
  settings["text"] = value_or(body, "text", {{"format", {{"type", "text"}}}});
  settings["tool_choice"] = value_or(body, "tool_choice", "auto");
  settings["tools"] = value_or(body, "tools", Json::array());
  settings["top_logprobs"] = value_or(body, "top_logprobs", 0);
  settings["top_p"] = value_or(body, "top_p", 1.0);
  settings["truncation"] = "disabled";
  return settings;
}

Json usage_of(const Choice& choice) {
  const Usage& usage = choice.usage;
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
          {"output_tokens", usage.generated_tokens},
          {"output_tokens_details", {{"reasoning_tokens", choice.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.generated_tokens}};
}

class ResponseFormat : public BlockFormat {
 public:
  explicit ResponseFormat(const ApiCall& call)
      : model_(call.engine.model()), id_(new_id("resp_")), created_(unix_seconds()), settings_(settings_of(call)) {}

  std::string body(std::span<const Choice> choices) override { return dump(finished(choices.front())); }
  std::string error(int status, const std::string& message) override { return openai_error(status, message); }

  std::string begin(std::span<const Choice>) override {
    const Json response = response_of("in_progress", Json::array());
    std::string events = event("response.created", {{"response", response}});
    return events += event("response.in_progress", {{"response", response}});
  }

  std::string end(std::span<const Choice> choices) override {
    const bool incomplete = choices.front().finish == FinishReason::kLength;
    return event(incomplete ? "response.incomplete" : "response.completed", {{"response", finished(choices.front())}});
  }

  std::string fail(std::span<const Choice> choices, const std::string& message) override {
    Json response = response_of("failed", output_of(choices.front(), "incomplete"));
    response["error"] = {{"code", "server_error"}, {"message", message}};
    return event("response.failed", {{"response", std::move(response)}});
  }

 protected:
  std::string begin_block(std::size_t index, const Block& block) override {
    Json item = item_of(block, item_id(index, block), "in_progress", Json::array(), "");
    std::string events = event("response.output_item.added", {{"output_index", index}, {"item", std::move(item)}});
    if (block.kind == Block::Kind::kCall) return events;
    const Json part = part_of(block, "", Json::array());
    return events += block_event("response.content_part.added", index, block, {{"part", part}});
  }

  std::string block_text(std::size_t index, const Block& block, const AnswerDelta::Part& part) override {
    Json fields = {{"delta", part.text}};
    if (block.kind == Block::Kind::kContent) fields["logprobs"] = without_bytes(logprobs_of(model_, part.logprobs));
    return block_event(text_event(block, false), index, block, fields);
  }

  std::string end_block(std::size_t index, const Block& block, bool cut_off) override {
    std::string events;
    if (block.kind == Block::Kind::kCall) {
      events = block_event(text_event(block, true), index, block, {{"name", block.name}, {"arguments", block.text}});
    } else {
      Json fields = {{"text", block.text}};
      const Json logprobs = logprobs_of(model_, block.logprobs);
      if (block.kind == Block::Kind::kContent) fields["logprobs"] = without_bytes(logprobs);
      events = block_event(text_event(block, true), index, block, fields);
      events +=
          block_event("response.content_part.done", index, block, {{"part", part_of(block, block.text, logprobs)}});
    }
    Json item = whole_item(index, block, cut_off ? "incomplete" : "completed");
    return events += event("response.output_item.done", {{"output_index", index}, {"item", std::move(item)}});
  }

 private:
  static const char* text_event(const Block& block, bool done) {
    switch (block.kind) {
      case Block::Kind::kReasoning:
        return done ? "response.reasoning_text.done" : "response.reasoning_text.delta";
      case Block::Kind::kCall:
        return done ? "response.function_call_arguments.done" : "response.function_call_arguments.delta";
      case Block::Kind::kContent:
        break;
    }
    return done ? "response.output_text.done" : "response.output_text.delta";
  }

  std::string event(const char* type, const Json& fields) {
    Json data = {{"type", type}, {"sequence_number", sequence_++}};
    data.update(fields);
    return sse_event(type, data);
  }

  // Of an item's content or arguments.
  std::string block_event(const char* type, std::size_t index, const Block& block, const Json& fields) {
    Json data = {{"item_id", item_id(index, block).id}, {"output_index", index}};
    if (block.kind != Block::Kind::kCall) data["content_index"] = 0;
    data.update(fields);
    return event(type, data);
  }

  // The same for the stream and the whole response.
  const ItemId& item_id(std::size_t index, const Block& block) {
    while (ids_.size() <= index) ids_.emplace_back();
    ItemId& id = ids_[index];
    if (id.id.empty()) {
      id.id = new_id(block.kind == Block::Kind::kReasoning ? "rs_" : block.kind == Block::Kind::kCall ? "fc_" : "msg_");
      if (block.kind == Block::Kind::kCall) id.call_id = new_id("call_");
    }
    return id;
  }

  Json whole_item(std::size_t index, const Block& block, const char* status) {
    Json content;
    if (block.kind != Block::Kind::kCall) {
      content = Json::array({part_of(block, block.text, logprobs_of(model_, block.logprobs))});
    }
    return item_of(block, item_id(index, block), status, content, block.text);
  }

  Json output_of(const Choice& choice, const char* last_status) {
    Json output = Json::array();
    for (std::size_t i = 0; i < choice.blocks.size(); ++i) {
      const bool is_last = i + 1 == choice.blocks.size();
      output.push_back(whole_item(i, choice.blocks[i], is_last ? last_status : "completed"));
    }
    return output;
  }

  Json response_of(const char* status, Json output) const {
    Json response = {
        {"id", id_},        {"object", "response"},          {"created_at", created_},      {"status", status},
        {"error", nullptr}, {"incomplete_details", nullptr}, {"output", std::move(output)}, {"usage", nullptr}};
    response.update(settings_);
    return response;
  }

  Json finished(const Choice& choice) {
    const bool incomplete = choice.finish == FinishReason::kLength;
    const char* status = incomplete ? "incomplete" : "completed";
    Json response = response_of(status, output_of(choice, status));
    if (incomplete) response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response["usage"] = usage_of(choice);
    return response;
  }

  const Model& model_;
  const std::string id_;
  const std::int64_t created_;
  const Json settings_;
  std::int64_t sequence_ = 0;
  std::vector<ItemId> ids_;
};

}  // namespace

std::unique_ptr<AnswerFormat> response_format(const ApiCall& call) { return std::make_unique<ResponseFormat>(call); }

}  // namespace thalweg::server
