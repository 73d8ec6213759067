#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace thalweg::io {

// Parses `text`, which holds one JSON value. Stricter than the parser alone: throws Error, with `path` and `subject`,
// also for duplicate keys in an object and for values nested more than 64 deep.
nlohmann::json parse_json(std::string_view text, const std::string& path, const std::string& subject);

// "a string", "an array": for messages.
std::string json_type_name(const nlohmann::json& value);

}  // namespace thalweg::io
