#include "server/tools.h"

#include <algorithm>
#include <cctype>

#include "server/bad_request.h"
#include "server/fields.h"

namespace thalweg::server {
namespace {

bool is_name(const std::string& name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
}

bool has(const Tools& tools, const std::string& name) {
  return std::any_of(tools.list.begin(), tools.list.end(),
                     [&](const Json& tool) { return tool["function"]["name"] == name; });
}

}  // namespace

void Tools::add(const std::string& name, const std::string& description, const Json* parameters, bool is_strict) {
  if (!is_name(name)) {
    throw BadRequest("a function's name has 1 to 128 letters, digits, '_', '-' or '.', not '" + name + "'", "tools");
  }
  if (has(*this, name)) throw BadRequest("two functions have the name '" + name + "'", "tools");
  Json function = {{"name", name}};
  if (!description.empty()) function["description"] = description;
  if (parameters != nullptr) function["parameters"] = *parameters;
  list.push_back({{"type", "function"}, {"function", std::move(function)}});
  strict = strict || is_strict;
}

void Tools::require(const std::string& name) {
  if (!has(*this, name)) throw BadRequest("'tools' has no function '" + name + "'", "tool_choice");
  required = true;
  only = name;
}

void Tools::require_any() {
  if (empty()) throw BadRequest("a call is required, but 'tools' has no function", "tool_choice");
  required = true;
}

void apply_tool_choice(const Json& body, Tools& tools) {
  const Json* choice = find_field(body, "tool_choice");
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    tools = {};
  } else if (*choice == "required") {
    tools.require_any();
  } else if (choice->is_object()) {
    const std::string* type = string_field(*choice, "type");
    if (type == nullptr || *type != "function") {
      throw BadRequest("'tool_choice' may name a tool of type 'function' only", "tool_choice");
    }
    const Json* function = object_field(*choice, "function");
    tools.require(required_string(function != nullptr ? *function : *choice, "name"));
  } else {
    throw BadRequest("'tool_choice' must be 'none', 'auto', 'required' or a function", "tool_choice");
  }
}

}  // namespace thalweg::server
