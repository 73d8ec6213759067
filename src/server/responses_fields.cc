#include <algorithm>
#include <cstdint>
#include <optional>

#include "server/conversation.h"
#include "server/fields.h"
#include "server/openai_format.h"
#include "server/responses.h"

namespace thalweg::server {
namespace {

void add_message(const Json& item, Conversation& conversation) {
  const std::string& role = required_string(item, "role");
  const std::string text = content_text(item, "content");
  if (role == "system" || role == "developer") {
    conversation.add_system(text);
  } else if (role == "user") {
    conversation.add_user(text);
  } else if (role == "assistant") {
    conversation.add_answer(text);
  } else {
    throw BadRequest("there is no role '" + role + "'; there are system, developer, user and assistant");
  }
}

// Thoughts of an earlier answer; what is encrypted or a summary was not written by this server.
void add_reasoning(const Json& item, Conversation& conversation) {
  const Json* content = list_field(item, "content");
  if (content == nullptr) return;
  for (const Json& part : *content) {
    if (const std::string* text = string_field(part, "text")) conversation.add_reasoning(*text);
  }
}

void add_item(const Json& item, Conversation& conversation) {
  const std::string* type = string_field(item, "type");
  if (type == nullptr || *type == "message") {
    add_message(item, conversation);
  } else if (*type == "function_call") {
    conversation.add_call(required_string(item, "call_id"), required_string(item, "name"),
                          required_string(item, "arguments"));
  } else if (*type == "function_call_output") {
    conversation.add_result(required_string(item, "call_id"), content_text(item, "output"));
  } else if (*type == "reasoning") {
    add_reasoning(item, conversation);
  } else {
    throw BadRequest("items of type '" + *type +
                     "' are not supported; there are message, function_call, function_call_output and reasoning");
  }
}

std::vector<ChatMessage> messages_of(const Json& body) {
  Conversation conversation("input");
  if (const std::string* instructions = string_field(body, "instructions")) conversation.add_system(*instructions);
  const Json* input = find_field(body, "input");
  if (input != nullptr && input->is_string()) {
    conversation.add_user(input->get_ref<const std::string&>());
  } else {
    for (const Json& item : required_list(body, "input")) add_item(item, conversation);
  }
  return conversation.take();
}

Tools tools_of(const Json& body) {
  Tools tools;
  if (const Json* list = list_field(body, "tools")) {
    for (const Json& tool : *list) {
      const std::string& type = required_string(tool, "type");
      if (type != "function") throw BadRequest("tools of type '" + type + "' are not supported; there is 'function'");
      const std::string* description = string_field(tool, "description");
      tools.add(required_string(tool, "name"), description != nullptr ? *description : "",
                object_field(tool, "parameters"), bool_field(tool, "strict").value_or(false));
    }
  }
  return tools;
}

void refuse_unsupported(const Json& body) {
  for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
    if (find_field(body, name) != nullptr) {
      throw BadRequest(
          std::string("'") + name + "' is not supported: this server keeps nothing; send all items as 'input'", name);
    }
  }
  if (bool_field(body, "background").value_or(false)) throw BadRequest("'background' is not supported", "background");
}

// Logprobs are requested by "include"; its other values belong to features that this server does not have.
std::optional<int> read_logprobs(const Json& body) {
  const auto likeliest = integer_field(body, "top_logprobs", 0, 20);
  const Json* include = list_field(body, "include");
  if (include == nullptr) return std::nullopt;
  const bool asked = std::find(include->begin(), include->end(), "message.output_text.logprobs") != include->end();
  return asked ? std::optional(static_cast<int>(likeliest.value_or(0))) : std::nullopt;
}

}  // namespace

ChatCall read_response(const Json& body) {
  refuse_unsupported(body);
  ChatCall chat;
  chat.messages = naming("input", [&] { return messages_of(body); });
  chat.tools = naming("tools", [&] { return tools_of(body); });
  apply_tool_choice(body, chat.tools);
  chat.tools.parallel = bool_field(body, "parallel_tool_calls").value_or(true);
  const Json* text = object_field(body, "text");
  if (const Json* format = text != nullptr ? object_field(*text, "format") : nullptr) {
    naming("text.format", [&] { apply_format(*format, chat); });
  }
  if (const Json* reasoning = object_field(body, "reasoning")) chat.think = think_of_effort(*reasoning, "effort");
  chat.logprobs = read_logprobs(body);
  chat.sampling = sampling_fields(body);
  chat.max_tokens = integer_field(body, "max_output_tokens", 1, INT32_MAX).value_or(-1);
  return chat;
}

void answer_response(const ApiCall& call) {
  require_chat(call);
  const ChatCall chat = read_response(call.body);
  start_answer(call, chat_requests(call, chat), response_format(call), bool_field(call.body, "stream").value_or(false));
}

}  // namespace thalweg::server
