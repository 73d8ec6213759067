#pragma once

#include <memory>
#include <string>

#include "server/api_call.h"
#include "server/chat_call.h"

namespace thalweg::server {

// Anthropic's /v1/messages and /v1/messages/count_tokens. They throw BadRequest and Error before anything is answered.
void answer_message(const ApiCall& call);
void count_message_tokens(const ApiCall& call);

// {"type": "error", "error": {...}}.
std::string anthropic_error(int status, const std::string& message);

// The fields of a body but max_tokens.
ChatCall read_message(const Json& body);

// What is written.
std::unique_ptr<AnswerFormat> message_format(const ApiCall& call);

}  // namespace thalweg::server
