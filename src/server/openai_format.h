#pragma once

// What OpenAI's wire formats share.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/answer.h"
#include "server/chat_call.h"
#include "server/json.h"

namespace thalweg::server {

// {"error": {...}}.
std::string openai_error(int status, const std::string& message, const std::string& parameter = {});

std::string new_id(const char* prefix);  // unlike any other
std::int64_t unix_seconds();

// Throws BadRequest for penalties and biases, which would change the answer.
void refuse_unsupported_sampling(const Json& body);

Json openai_usage(std::span<const Choice> choices);

// A token with its bytes and logprob, without and with the likeliest beside it.
Json logprob_entry(const Model& model, const TokenLogprobs::Entry& entry);
Json logprobs_entry(const Model& model, const TokenLogprobs& logprobs);

// Text, or a list of parts of type "text", "input_text" or "output_text".
std::string content_text(const Json& message, const char* name);

// "reasoning_effort" and the like: "none" is without thoughts, the others are the model's default.
std::optional<bool> think_of_effort(const Json& options, const char* name);

// {"type": "text" | "json_object" | "json_schema", ...}; the schema stands under "json_schema" or here.
void apply_format(const Json& format, ChatCall& chat);

// A stream's event; `name` is left out if it is null.
std::string sse_event(const char* name, const Json& data);

}  // namespace thalweg::server
