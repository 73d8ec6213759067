#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace thalweg::server {

// Keeps the order of keys: tools stand in the prompt as the client wrote them, and answers follow the order of a
// schema.
using Json = nlohmann::ordered_json;

// Bytes that are no UTF-8 become U+FFFD.
std::string dump(const Json& json);

// Of what a client sends; discarded if it is not JSON. Throws BadRequest for more than 2048 keys in an object, which
// take quadratic time, and for more than 128 levels, which take stack.
Json parse_json(std::string_view text);
// The same for a body, which must be an object.
Json parse_body(std::string_view text);

}  // namespace thalweg::server
