#include "server/conversation.h"

#include <algorithm>
#include <utility>

#include "server/bad_request.h"
#include "server/json.h"

namespace thalweg::server {

void Conversation::refuse(const std::string& why) const { throw BadRequest(why, field_); }

void Conversation::add_system(const std::string& text) {
  close_calls();
  if (messages_.size() == 1 && messages_.front().role == "system") {
    messages_.front().content += "\n\n" + text;
  } else {
    messages_.push_back({"system", text});
  }
}

void Conversation::add_user(const std::string& text) {
  close_calls();
  messages_.push_back({"user", text});
}

void Conversation::begin_assistant() {
  close_calls();
  messages_.push_back({"assistant", ""});
}

ChatMessage& Conversation::assistant() {
  if (has_results_) close_calls();
  if (messages_.empty() || messages_.back().role != "assistant") begin_assistant();
  return messages_.back();
}

void Conversation::add_reasoning(const std::string& text) { assistant().reasoning += text; }

void Conversation::add_answer(const std::string& text) { assistant().content += text; }

void Conversation::add_call(const std::string& id, const std::string& name, const std::string& arguments) {
  const std::string object = arguments.empty() ? "{}" : arguments;
  if (!parse_json(object).is_object()) refuse("the arguments of a call must be a JSON object");
  ChatMessage& message = assistant();
  if (std::any_of(calls_.begin(), calls_.end(), [&](const OpenCall& call) { return call.id == id; })) {
    refuse("two calls have the id '" + id + "'");
  }
  message.tool_calls.push_back({name, object});
  calls_.push_back({id, false, {}});
}

void Conversation::add_result(const std::string& id, const std::string& text) {
  const auto call = std::find_if(calls_.begin(), calls_.end(), [&](const OpenCall& open) { return open.id == id; });
  if (call == calls_.end()) refuse("a result must follow its call, and no call before it has the id '" + id + "'");
  if (call->has_result) refuse("the call '" + id + "' has two results");
  call->has_result = true;
  call->result = text;
  has_results_ = true;
}

void Conversation::close_calls() {
  for (OpenCall& call : calls_) {
    if (!call.has_result) refuse("the call '" + call.id + "' has no result");
    messages_.push_back({"tool", std::move(call.result)});
  }
  calls_.clear();
  has_results_ = false;
}

std::vector<ChatMessage> Conversation::take() {
  close_calls();
  return std::exchange(messages_, {});
}

}  // namespace thalweg::server
