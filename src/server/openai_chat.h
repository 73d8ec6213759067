#pragma once

#include <cstddef>
#include <memory>

#include "server/api_call.h"
#include "server/chat_call.h"

namespace thalweg::server {

// OpenAI's /v1/chat/completions. Throws BadRequest and Error before anything is answered.
void answer_chat_completion(const ApiCall& call);

// The fields of a body.
ChatCall read_chat_completion(const Json& body);

// What is written of `count` answers.
std::unique_ptr<AnswerFormat> chat_format(const ApiCall& call, bool logprobs, std::size_t count);

}  // namespace thalweg::server
