#include "server/openai_chat.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "server/answer.h"
#include "server/conversation.h"
#include "server/fields.h"
#include "server/openai_format.h"

namespace thalweg::server {
namespace {

void add_assistant(const Json& message, Conversation& conversation) {
  conversation.begin_assistant();
  for (const char* name : {"reasoning_content", "reasoning"}) {
    if (const std::string* reasoning = string_field(message, name)) {
      conversation.add_reasoning(*reasoning);
      break;
    }
  }
  conversation.add_answer(content_text(message, "content"));
  const Json* calls = list_field(message, "tool_calls");
  if (calls == nullptr) return;
  for (const Json& call : *calls) {
    const Json* function = object_field(call, "function");
    if (function == nullptr) throw BadRequest("a call must have a 'function'");
    conversation.add_call(required_string(call, "id"), required_string(*function, "name"),
                          required_string(*function, "arguments"));
  }
}

std::vector<ChatMessage> messages_of(const Json& body) {
  Conversation conversation("messages");
  for (const Json& message : required_list(body, "messages")) {
    const std::string& role = required_string(message, "role");
    if (role == "system" || role == "developer") {
      conversation.add_system(content_text(message, "content"));
    } else if (role == "user") {
      conversation.add_user(content_text(message, "content"));
    } else if (role == "assistant") {
      add_assistant(message, conversation);
    } else if (role == "tool") {
      conversation.add_result(required_string(message, "tool_call_id"), content_text(message, "content"));
    } else {
      throw BadRequest("there is no role '" + role + "'; there are system, developer, user, assistant and tool");
    }
  }
  return conversation.take();
}

Tools tools_of(const Json& body) {
  Tools tools;
  if (const Json* list = list_field(body, "tools")) {
    for (const Json& tool : *list) {
      const std::string& type = required_string(tool, "type");
      const Json* function = object_field(tool, "function");
      if (type != "function" || function == nullptr) {
        throw BadRequest("a tool must have the type 'function' and a 'function', not the type '" + type + "'");
      }
      const std::string* description = string_field(*function, "description");
      tools.add(required_string(*function, "name"), description != nullptr ? *description : "",
                object_field(*function, "parameters"), bool_field(*function, "strict").value_or(false));
    }
  }
  return tools;
}

void read_thinking(const Json& body, ChatCall& chat) {
  chat.think = think_of_effort(body, "reasoning_effort");
  if (const Json* options = object_field(body, "chat_template_kwargs")) {
    if (const auto think = bool_field(*options, "enable_thinking")) chat.think = think;
    chat.preserve_thinking = bool_field(*options, "preserve_thinking");
  }
}

void refuse_unsupported(const Json& body) {
  refuse_unsupported_sampling(body);
  if (const Json* functions = list_field(body, "functions"); functions != nullptr && !functions->empty()) {
    throw BadRequest("'functions' are not supported; there are 'tools'", "functions");
  }
  if (const Json* modalities = list_field(body, "modalities")) {
    for (const Json& modality : *modalities) {
      if (modality != "text") throw BadRequest("this model writes text", "modalities");
    }
  }
}

class ChatFormat : public AnswerFormat {
 public:
  ChatFormat(const ApiCall& call, bool logprobs, std::size_t choices)
      : model_(call.engine.model()),
        id_(new_id("chatcmpl-")),
        created_(unix_seconds()),
        name_(model_name_of(call)),
        logprobs_(logprobs),
        call_ids_(choices) {
    if (const Json* options = object_field(call.body, "stream_options")) {
      include_usage_ = bool_field(*options, "include_usage").value_or(false);
    }
  }

  std::string body(std::span<const Choice> choices) override {
    Json answer = envelope("chat.completion");
    for (std::size_t i = 0; i < choices.size(); ++i) {
      answer["choices"].push_back({{"index", i},
                                   {"message", message_of(choices[i])},
                                   {"logprobs", logprobs_of(choices[i].blocks)},
                                   {"finish_reason", finish_of(choices[i])}});
    }
    answer["usage"] = openai_usage(choices);
    return dump(answer);
  }
  std::string error(int status, const std::string& message) override { return openai_error(status, message); }

  std::string begin(std::span<const Choice> choices) override {
    std::string text;
    for (std::size_t i = 0; i < choices.size(); ++i) text += event(i, {{"role", "assistant"}, {"content", ""}});
    return text;
  }
  std::string delta(std::size_t index, const Choice& choice, const AnswerDelta& delta) override {
    Json fields = Json::object();
    for (const AnswerDelta::Part& part : delta.parts) {
      if (choice.blocks[part.block].kind == Block::Kind::kCall) {
        fields["tool_calls"].push_back(call_delta(index, choice, part));
      } else {
        Json& text = fields[key_of(choice.blocks[part.block].kind)];
        text = text.is_null() ? part.text : text.get_ref<const std::string&>() + part.text;
      }
    }
    if (fields.empty()) return {};  // a token that says nothing by itself
    return event(index, std::move(fields), Json(), logprobs_of(delta.parts));
  }
  std::string finish(std::size_t index, const Choice& choice) override {
    return event(index, Json::object(), finish_of(choice));
  }
  std::string end(std::span<const Choice> choices) override {
    std::string text;
    if (include_usage_) {
      Json last = envelope("chat.completion.chunk");
      last["usage"] = openai_usage(choices);
      text = sse_event(nullptr, last);
    }
    return text + "data: [DONE]\n\n";
  }
  std::string fail(std::span<const Choice>, const std::string& message) override {
    return "data: " + openai_error(500, message) + "\n\n";
  }

 private:
  static const char* finish_of(const Choice& choice) {
    if (choice.finish == FinishReason::kLength) return "length";
    return choice.has_calls() ? "tool_calls" : "stop";
  }

  Json envelope(const char* object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", name_}, {"choices", Json::array()}};
  }

  std::string event(std::size_t index, Json delta, Json finish = {}, Json logprobs = {}) const {
    Json chunk = envelope("chat.completion.chunk");
    chunk["choices"].push_back({{"index", index},
                                {"delta", std::move(delta)},
                                {"logprobs", std::move(logprobs)},
                                {"finish_reason", std::move(finish)}});
    if (include_usage_) chunk["usage"] = nullptr;
    return sse_event(nullptr, chunk);
  }

  static const char* key_of(Block::Kind kind) {
    return kind == Block::Kind::kReasoning ? "reasoning_content" : "content";
  }

  // A call's first part has its name.
  Json call_delta(std::size_t index, const Choice& choice, const AnswerDelta::Part& part) {
    std::size_t number = 0;
    for (std::size_t i = 0; i < part.block; ++i) number += choice.blocks[i].kind == Block::Kind::kCall ? 1 : 0;
    Json call = {{"index", number}};
    Json function = Json::object();
    if (call_ids_[index].size() <= number) {
      call_ids_[index].push_back(new_id("call_"));
      call["id"] = call_ids_[index].back();
      call["type"] = "function";
      function["name"] = choice.blocks[part.block].name;
    }
    function["arguments"] = part.text;
    call["function"] = std::move(function);
    return call;
  }

  static Json message_of(const Choice& choice) {
    const std::string content = choice.text(Block::Kind::kContent);
    const std::string reasoning = choice.text(Block::Kind::kReasoning);
    const bool only_calls = content.empty() && choice.has_calls();
    Json message = {{"role", "assistant"}, {"content", only_calls ? Json() : Json(content)}, {"refusal", nullptr}};
    if (!reasoning.empty()) message["reasoning_content"] = reasoning;
    for (const Block& block : choice.blocks) {
      if (block.kind != Block::Kind::kCall) continue;
      message["tool_calls"].push_back({{"id", new_id("call_")},
                                       {"type", "function"},
                                       {"function", {{"name", block.name}, {"arguments", block.text}}}});
    }
    return message;
  }

  // Of the content's tokens, in blocks or in what is new of them.
  template <class Part>
  Json logprobs_of(const std::vector<Part>& parts) const {
    if (!logprobs_) return {};
    Json content = Json::array();
    for (const Part& part : parts) {
      for (const TokenLogprobs& token : part.logprobs) content.push_back(logprobs_entry(model_, token));
    }
    return {{"content", std::move(content)}};
  }

  const Model& model_;
  const std::string id_;
  const std::int64_t created_;
  const std::string name_;
  const bool logprobs_;
  bool include_usage_ = false;
  std::vector<std::vector<std::string>> call_ids_;  // of each choice's calls in the stream
};

}  // namespace

ChatCall read_chat_completion(const Json& body) {
  refuse_unsupported(body);
  ChatCall chat;
  chat.messages = naming("messages", [&] { return messages_of(body); });
  chat.tools = naming("tools", [&] { return tools_of(body); });
  apply_tool_choice(body, chat.tools);
  chat.tools.parallel = bool_field(body, "parallel_tool_calls").value_or(true);
  if (const Json* format = object_field(body, "response_format")) {
    naming("response_format", [&] { apply_format(*format, chat); });
  }
  read_thinking(body, chat);
  chat.sampling = sampling_fields(body);
  chat.stop = stop_field(body, "stop");
  auto max_tokens = integer_field(body, "max_completion_tokens", 1, INT32_MAX);
  if (!max_tokens) max_tokens = integer_field(body, "max_tokens", 1, INT32_MAX);
  chat.max_tokens = max_tokens.value_or(-1);
  if (bool_field(body, "logprobs").value_or(false)) {
    chat.logprobs = static_cast<int>(integer_field(body, "top_logprobs", 0, 20).value_or(0));
  }
  chat.count = static_cast<std::size_t>(integer_field(body, "n", 1, 16).value_or(1));
  return chat;
}

std::unique_ptr<AnswerFormat> chat_format(const ApiCall& call, bool logprobs, std::size_t count) {
  return std::make_unique<ChatFormat>(call, logprobs, count);
}

void answer_chat_completion(const ApiCall& call) {
  require_chat(call);
  const ChatCall chat = read_chat_completion(call.body);
  start_answer(call, chat_requests(call, chat), chat_format(call, chat.logprobs.has_value(), chat.count),
               bool_field(call.body, "stream").value_or(false));
}

}  // namespace thalweg::server
