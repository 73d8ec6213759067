#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace thalweg::io {

// The JSON value that `text` holds and nothing else. Stricter than the parser alone: keys that come twice in an object
// and values nested more than 64 deep are refused. Throws Error of `path` and `subject`.
nlohmann::json parse_json(std::string_view text, const std::string& path, const std::string& subject);

// "a string", "an array": for messages.
std::string json_type_name(const nlohmann::json& value);

}  // namespace thalweg::io
