#pragma once

#include <memory>

#include "server/api_call.h"
#include "server/chat_call.h"

namespace thalweg::server {

// OpenAI's /v1/responses, without a memory of earlier ones. Throws BadRequest and Error before anything is answered.
void answer_response(const ApiCall& call);

// The fields of a body.
ChatCall read_response(const Json& body);

// What is written of them.
std::unique_ptr<AnswerFormat> response_format(const ApiCall& call);

}  // namespace thalweg::server
