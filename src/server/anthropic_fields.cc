#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "server/anthropic.h"
#include "server/conversation.h"
#include "server/fields.h"
#include "server/openai_format.h"

namespace thalweg::server {
namespace {

// A text, or a list of text blocks, which are paragraphs.
std::string text_of(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw BadRequest("content must be a text or a list of blocks");
  std::string text;
  for (const Json& block : content) {
    const std::string& type = required_string(block, "type");
    if (type != "text") throw BadRequest("this model reads text, and no block of type '" + type + "'");
    if (!text.empty()) text += "\n\n";
    text += required_string(block, "text");
  }
  return text;
}

void add_user(const Json& content, Conversation& conversation) {
  if (!content.is_array()) return conversation.add_user(text_of(content));
  Json texts = Json::array();
  for (const Json& block : content) {
    if (required_string(block, "type") != "tool_result") {
      texts.push_back(block);
      continue;
    }
    const Json* result = find_field(block, "content");
    conversation.add_result(required_string(block, "tool_use_id"), result != nullptr ? text_of(*result) : "");
  }
  if (!texts.empty()) conversation.add_user(text_of(texts));
}

void add_assistant_block(const Json& block, Conversation& conversation) {
  const std::string& type = required_string(block, "type");
  if (type == "text") {
    conversation.add_answer(required_string(block, "text"));
  } else if (type == "thinking") {
    conversation.add_reasoning(required_string(block, "thinking"));
  } else if (type == "tool_use") {
    const Json* input = object_field(block, "input");
    conversation.add_call(required_string(block, "id"), required_string(block, "name"),
                          input != nullptr ? dump(*input) : "{}");
  } else if (type != "redacted_thinking") {
    throw BadRequest("an answer has no block of type '" + type + "'");
  }
}

std::vector<ChatMessage> messages_of(const Json& body, const std::optional<std::string>& system) {
  Conversation conversation("messages");
  if (system) conversation.add_system(*system);
  for (const Json& message : required_list(body, "messages")) {
    const std::string& role = required_string(message, "role");
    const Json* content = find_field(message, "content");
    if (content == nullptr) throw BadRequest("each message must have 'content'");
    if (role == "user") {
      add_user(*content, conversation);
    } else if (role == "assistant") {
      conversation.begin_assistant();
      if (!content->is_array()) {
        conversation.add_answer(text_of(*content));
        continue;
      }
      for (const Json& block : *content) add_assistant_block(block, conversation);
    } else if (role == "system") {
      conversation.add_system(text_of(*content));
    } else {
      throw BadRequest("there is no role '" + role + "'; there are user and assistant");
    }
  }
  return conversation.take();
}

Tools tools_of(const Json& body) {
  Tools tools;
  if (const Json* list = list_field(body, "tools")) {
    for (const Json& tool : *list) {
      const std::string* type = string_field(tool, "type");
      if (type != nullptr && *type != "custom") {
        throw BadRequest("this server runs no tools of its own, and so none of type '" + *type + "'");
      }
      const std::string* description = string_field(tool, "description");
      const Json* schema = object_field(tool, "input_schema");
      if (schema == nullptr) throw BadRequest("a tool must have an 'input_schema'");
      tools.add(required_string(tool, "name"), description != nullptr ? *description : "", schema,
                bool_field(tool, "strict").value_or(false));
    }
  }
  return tools;
}

void read_tool_choice(const Json& body, Tools& tools) {
  const Json* choice = object_field(body, "tool_choice");
  if (choice == nullptr) return;
  required_string(*choice, "type");
  const std::string& type = *choice_field(*choice, "type", {"auto", "any", "tool", "none"});
  tools.parallel = !bool_field(*choice, "disable_parallel_tool_use").value_or(false);
  if (type == "none") tools = {};
  if (type == "any") tools.require_any();
  if (type == "tool") tools.require(required_string(*choice, "name"));
}

void read_thinking(const Json& body, ChatCall& chat) {
  const Json* thinking = object_field(body, "thinking");
  if (thinking == nullptr) return;
  required_string(*thinking, "type");
  const std::string& type = *choice_field(*thinking, "type", {"enabled", "disabled", "adaptive"});
  if (type == "enabled") chat.think = true;
  if (type == "disabled") chat.think = false;
  const auto budget = integer_field(*thinking, "budget_tokens", 1, INT32_MAX);
  if (type == "enabled") chat.thought_budget = budget;
}

}  // namespace

ChatCall read_message(const Json& body) {
  if (const Json* servers = list_field(body, "mcp_servers"); servers != nullptr && !servers->empty()) {
    throw BadRequest("'mcp_servers' are not supported", "mcp_servers");
  }
  ChatCall chat;
  std::optional<std::string> system;
  if (const Json* field = find_field(body, "system")) system = naming("system", [&] { return text_of(*field); });
  chat.messages = naming("messages", [&] { return messages_of(body, system); });
  chat.tools = naming("tools", [&] { return tools_of(body); });
  naming("tool_choice", [&] { read_tool_choice(body, chat.tools); });
  naming("thinking", [&] { read_thinking(body, chat); });
  const Json* output = object_field(body, "output_config");
  if (const Json* format = output != nullptr ? object_field(*output, "format") : nullptr) {
    naming("output_config.format", [&] { apply_format(*format, chat); });
  }
  chat.sampling = sampling_fields(body);
  chat.stop = stop_field(body, "stop_sequences");
  return chat;
}

void answer_message(const ApiCall& call) {
  require_chat(call);
  ChatCall chat = read_message(call.body);
  const auto max_tokens = integer_field(call.body, "max_tokens", 1, INT32_MAX);
  if (!max_tokens) throw BadRequest("max_tokens: Field required", "max_tokens");
  chat.max_tokens = *max_tokens;
  start_answer(call, chat_requests(call, chat), message_format(call), bool_field(call.body, "stream").value_or(false));
}

void count_message_tokens(const ApiCall& call) {
  require_chat(call);
  const ChatPrompt prompt = chat_prompt_of(call.engine, read_message(call.body));
  call.response->send(200, "application/json", dump({{"input_tokens", prompt.tokens.size()}}));
}

}  // namespace thalweg::server
