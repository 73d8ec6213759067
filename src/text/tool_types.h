#pragma once

#include <map>
#include <string>
#include <string_view>

namespace thalweg::text {

// JSON Schema's types that a parameter may have.
struct ParameterTypes {
  bool any = true;  // the schema says nothing
  bool string = false;
  bool boolean = false;
  bool null = false;
  bool other = false;  // number, integer, array or object

  bool only_string() const { return !any && string && !boolean && !null && !other; }
};

// The parameters of tools, as OpenAI's "tools" declares them.
class ToolTypes {
 public:
  // Throws Error if tools is neither empty nor a JSON list.
  explicit ToolTypes(std::string_view tools);

  bool empty() const { return empty_; }  // there are no tools
  ParameterTypes find(std::string_view tool, std::string_view parameter) const;

 private:
  bool empty_;
  std::map<std::string, std::map<std::string, ParameterTypes, std::less<>>, std::less<>> tools_;
};

// The JSON text of an argument that a model wrote as plain text: a string, unless the types allow another value and the
// text is one. Python's True, False and None, with which Qwen3.5's template writes such arguments, count as well.
std::string argument_json(std::string_view text, const ParameterTypes& types);

}  // namespace thalweg::text
