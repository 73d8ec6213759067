#pragma once

// Reads fields of a JSON body; throws BadRequest that names the field.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "server/bad_request.h"
#include "server/json.h"
#include "thalweg/sampling.h"

namespace thalweg::server {

// null counts as absent.
const Json* find_field(const Json& body, const char* name);
std::optional<double> number_field(const Json& body, const char* name, double least, double most);
std::optional<std::int64_t> integer_field(const Json& body, const char* name, std::int64_t least, std::int64_t most);
std::optional<bool> bool_field(const Json& body, const char* name);
const std::string* string_field(const Json& body, const char* name);
const Json* object_field(const Json& body, const char* name);
const Json* list_field(const Json& body, const char* name);
// The same, for those that must be there.
const std::string& required_string(const Json& body, const char* name);
const Json& required_list(const Json& body, const char* name);
// One of these texts.
const std::string* choice_field(const Json& body, const char* name, std::initializer_list<const char*> choices);

// What `read` refuses is said to be of this field of the body.
template <class Read>
auto naming(const char* field, Read read) {
  try {
    return read();
  } catch (const BadRequest& error) {
    throw BadRequest(error.what(), field, error.status());
  }
}

// A text or a list of at most 16.
std::vector<std::string> stop_field(const Json& body, const char* name);
// temperature (1 unless given, as in the original), top_p, top_k, min_p, repetition_penalty, seed (drawn unless given).
Sampling sampling_fields(const Json& body);

}  // namespace thalweg::server
