#pragma once

// What the standard says of the keywords in schemas.h, as simply as can be.

#include <nlohmann/json.hpp>
#include <string>

namespace thalweg::grammar {

using Value = nlohmann::ordered_json;

bool is_valid(const Value& value, const Value& schema, const Value& document);

}  // namespace thalweg::grammar
