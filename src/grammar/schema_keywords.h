#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "grammar/automaton.h"

namespace thalweg::grammar {

using Json = nlohmann::ordered_json;  // keeps the order of properties

// Parses JSON text. Throws Error also for what takes too long to compile: a megabyte, 200 levels, 10,000 members.
Json parse_json(std::string_view text, std::string_view argument);

[[noreturn]] void refuse(const std::string& path, std::string_view expected, std::string_view given);
// The beginning of a value's text.
std::string brief(const Json& value);

// By the standard without influence on what is valid.
bool is_annotation(std::string_view keyword);
bool has_only_annotations(const Json& schema);

bool is_supported(std::string_view keyword);  // and not an annotation
Bounds bounds_of(const Json& schema, const char* least, const char* most);

// Throws Error for a keyword that is not supported, unless its value changes nothing, and for values of wrong types.
void check_keywords(const Json& schema, const std::string& path);

// "#/properties/a" and "b/c" give "#/properties/a/b~1c".
std::string joined(const std::string& path, std::string_view key);
std::string joined(const std::string& path, std::size_t index);

}  // namespace thalweg::grammar
