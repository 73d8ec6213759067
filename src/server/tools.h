#pragma once

#include <string>

#include "server/json.h"

namespace thalweg::server {

// The functions that the model may call, as each wire format's fields are brought to.
struct Tools {
  Json list = Json::array();  // in OpenAI's form: {"type": "function", "function": {...}}
  bool strict = false;        // one of them is: its arguments must follow the schema
  bool required = false;      // the answer must be a call
  std::string only;           // the function that must be called; empty: any
  bool parallel = true;       // more than one call in an answer

  bool empty() const { return list.empty(); }
  // `parameters`: a JSON schema, or null for none. Throws BadRequest for a name that occurs twice or cannot be one.
  void add(const std::string& name, const std::string& description, const Json* parameters, bool is_strict);
  // Throws BadRequest if there is no function of this name.
  void require(const std::string& name);
  // Throws BadRequest if there is no function at all.
  void require_any();
};

// OpenAI's "tool_choice": "none", "auto", "required", or an object that names a function under `name_key`, or itself.
void apply_tool_choice(const Json& body, Tools& tools);

}  // namespace thalweg::server
