#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/answer.h"
#include "server/api_call.h"
#include "server/tools.h"
#include "thalweg/chat.h"
#include "thalweg/engine.h"

namespace thalweg::server {

// What a chat API asks, whatever its wire format.
struct ChatCall {
  std::vector<ChatMessage> messages;
  std::optional<bool> think;                   // none: as the model does by default
  std::optional<bool> preserve_thinking;       // of earlier answers
  std::optional<std::int64_t> thought_budget;  // most tokens of thoughts
  Tools tools;
  bool json = false;   // the answer is a JSON object
  std::string schema;  // that it follows; empty: any
  Sampling sampling;
  std::int64_t max_tokens = -1;  // -1: until the context is full
  std::vector<std::string> stop;
  std::optional<int> logprobs;
  std::size_t count = 1;  // of answers
};

// Throws BadRequest if the model was not made for conversations.
void require_chat(const ApiCall& call);
ChatPrompt chat_prompt_of(const Engine& engine, const ChatCall& chat);
// A request for each answer, with a seed each. Throws BadRequest and Error.
std::vector<AnswerRequest> chat_requests(const ApiCall& call, const ChatCall& chat);

}  // namespace thalweg::server
