// {"name": NAME, "arguments": {...}}, the members in any order and others among them. The arguments are passed on as
// they arrive if the name came before them.

#include <nlohmann/json.hpp>

#include "text/call_parser.h"
#include "text/json_scanner.h"
#include "text/json_value.h"

namespace thalweg::text {
namespace {

using Json = nlohmann::json;

// A control character in a string is escaped.
void append_byte(std::string& text, char c, bool in_string) {
  if (in_string && static_cast<unsigned char>(c) < 0x20) {
    append_json_character(text, c);
  } else {
    text += c;
  }
}

class JsonCallParser final : public CallParser {
 public:
  Status push(char c) override {
    if (scanner_.done()) return push_end_tag(c);
    const std::size_t depth = scanner_.depth();
    const bool in_string = scanner_.in_string();
    if ((depth == 0 && c == '[') || !scanner_.push(c)) return Status::kFailed;
    if (streaming_) {
      append_byte(arguments_, c, in_string);
      streaming_ = scanner_.depth() > 1;
      return Status::kMore;
    }
    unread_ += c;
    if (depth == 0) return Status::kMore;
    const bool ends_member = !in_string && (c == ',' ? depth == 1 : scanner_.done());
    if (!ends_member) {
      if (depth == 1 && scanner_.depth() == 2) begin_value(c);
      if (!streaming_) append_byte(member_, c, in_string);
      return Status::kMore;
    }
    if (end_member() && (!scanner_.done() || end_object())) return Status::kMore;
    unread_.pop_back();
    return Status::kFailed;
  }

  void finish() override {}

 private:
  // The member's value is an object or a list.
  void begin_value(char c) {
    value_ = member_.size();
    if (c != '{' || begun_ || name_.empty()) return;
    const Json object = Json::parse("{" + member_ + "null}", nullptr, false);
    if (!object.contains("arguments")) return;
    begin("{");
    streaming_ = true;
    member_.clear();
  }

  // false: the member is not one of a call.
  bool end_member() {
    // A member whose value was streamed has left blanks.
    const std::string member = std::exchange(member_, {});
    const Json object = Json::parse("{" + member + "}", nullptr, false);
    if (object.is_discarded()) return false;
    if (begun_ || object.empty()) return true;
    const Json& value = object.begin().value();
    if (object.begin().key() == "name") {
      if (!value.is_string()) return false;
      name_ = value.get<std::string>();
      return !name_.empty();
    }
    if (object.begin().key() != "arguments" || value.is_null()) return true;
    // Some models write the object as a string.
    held_arguments_ = value.is_string() ? value.get<std::string>() : member.substr(value_);
    return Json::parse(held_arguments_, nullptr, false).is_object();
  }

  // false: without a name it is no call.
  bool end_object() {
    if (!begun_) {
      if (name_.empty()) return false;
      begin(held_arguments_.empty() ? "{}" : held_arguments_);
    }
    unread_.clear();
    return true;
  }

  void begin(std::string arguments) {
    begun_ = true;
    arguments_ = std::move(arguments);
    unread_.clear();
  }

  JsonScanner scanner_;
  bool streaming_ = false;      // the bytes are of the arguments
  std::string member_;          // the text of the object's current member
  std::size_t value_ = 0;       // where its value begins, if that is an object or a list
  std::string held_arguments_;  // that came before the name
};

}  // namespace

std::unique_ptr<CallParser> make_json_call_parser() { return std::make_unique<JsonCallParser>(); }

}  // namespace thalweg::text
