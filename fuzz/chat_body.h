#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "server/bad_request.h"
#include "server/chat_call.h"
#include "server/json.h"

namespace thalweg::server {

inline void check(bool holds) {
  if (!holds) __builtin_trap();
}

// What every reader promises of a call that it does not refuse.
inline void check(const ChatCall& chat) {
  std::size_t open_calls = 0;
  for (const ChatMessage& message : chat.messages) {
    check((message.role == "tool") == (open_calls > 0));
    if (open_calls > 0) --open_calls;
    if (message.role == "assistant") open_calls = message.tool_calls.size();
    for (const ToolCall& call : message.tool_calls) check(Json::parse(call.arguments).is_object());
  }
  check(open_calls == 0);
  check(!chat.tools.required || !chat.tools.empty());
  for (const Json& tool : chat.tools.list) check(tool["function"]["name"].is_string());
  check(dump(chat.tools.list).size() >= 2);
  check(chat.schema.empty() || Json::parse(chat.schema).is_object());
  check(chat.count >= 1 && chat.count <= 16 && chat.max_tokens != 0 && chat.stop.size() <= 16);
}

// Any bytes as a body: refused with BadRequest, or read into a call.
inline void read_body(std::string_view bytes, ChatCall (*read)(const Json&)) {
  try {
    check(read(parse_body(bytes)));
  } catch (const BadRequest&) {
    // Refused.
  }
}

}  // namespace thalweg::server
