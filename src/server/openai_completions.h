#pragma once

#include "server/api_call.h"

namespace thalweg::server {

// OpenAI's /v1/completions. Throws BadRequest and Error before anything is answered.
void answer_completion(const ApiCall& call);

}  // namespace thalweg::server
