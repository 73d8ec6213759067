#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "thalweg/chat.h"

namespace thalweg::server {

// A conversation as the wire formats bring it, in their order. Chat templates know calls and their results by order
// alone: results are sorted by the ids of their calls. Throws BadRequest that names `field`.
class Conversation {
 public:
  explicit Conversation(const char* field) : field_(field) {}

  // System messages at the beginning are joined: the templates know one.
  void add_system(const std::string& text);
  void add_user(const std::string& text);
  void begin_assistant();
  // To the assistant's message; they begin one where the last is another's.
  void add_reasoning(const std::string& text);
  void add_answer(const std::string& text);
  // `arguments`: a JSON object's text; may be empty.
  void add_call(const std::string& id, const std::string& name, const std::string& arguments);
  void add_result(const std::string& id, const std::string& text);

  // Refuses a conversation with a call that has no result.
  std::vector<ChatMessage> take();

 private:
  struct OpenCall {
    std::string id;
    bool has_result = false;
    std::string result;
  };

  ChatMessage& assistant();
  void close_calls();
  [[noreturn]] void refuse(const std::string& why) const;

  const char* field_;
  std::vector<ChatMessage> messages_;
  std::vector<OpenCall> calls_;  // of the last assistant message
  bool has_results_ = false;     // of these calls
};

}  // namespace thalweg::server
