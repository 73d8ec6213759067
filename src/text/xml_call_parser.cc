// <function=NAME>, <parameter=KEY> VALUE </parameter> for each argument, </function>. The values become JSON by the
// tool's schema: those that can only be strings as they arrive, others when they are complete.

#include <initializer_list>

#include "text/call_parser.h"
#include "text/json_value.h"

namespace thalweg::text {
namespace {

constexpr std::string_view kFunctionTag = "<function=";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kEndParameter = "</parameter>";
constexpr std::string_view kEndFunction = "</function>";
constexpr std::string_view kEndCall = "</tool_call>";

class XmlCallParser final : public CallParser {
 public:
  explicit XmlCallParser(const ToolTypes& tools) : tools_(tools) {}

  Status push(char c) override {
    switch (state_) {
      case State::kFunction:
        return push_tag(c, {kFunctionTag});
      case State::kName:
      case State::kKey:
        return push_name(c);
      case State::kParameters:
        return push_tag(c, {kParameter, kEndFunction, kEndCall});
      case State::kValue:
        push_value(c);
        return Status::kMore;
      case State::kEnd:
        return push_end_tag(c);
    }
    return Status::kFailed;
  }

  void finish() override {
    if (state_ != State::kValue) return;
    flush_held();
    // What was to become JSON is cut off, so that its type is unknown.
    if (!types_.only_string()) arguments_ += value_;
  }

 private:
  enum class State : std::uint8_t { kFunction, kName, kParameters, kKey, kValue, kEnd };

  // The beginning of one of the tags, behind blanks.
  Status push_tag(char c, std::initializer_list<std::string_view> tags) {
    const bool blank = tag_.empty() && is_call_blank(c);
    if (!blank) {
      const std::string longer = tag_ + c;
      bool possible = false;
      for (const std::string_view tag : tags) possible = possible || tag.starts_with(longer);
      if (!possible) return Status::kFailed;
      tag_ = longer;
    }
    unread_ += c;
    if (tag_ == kFunctionTag) {
      enter(State::kName);
    } else if (tag_ == kParameter) {
      begin();
      enter(State::kKey);
    } else if (tag_ == kEndFunction || tag_ == kEndCall) {  // some models forget the first
      begin();
      arguments_ += count_ == 0 ? "{}" : "}";
      unread_.clear();
      if (tag_ == kEndCall) return Status::kEnded;
      enter(State::kEnd);
    }
    return Status::kMore;
  }

  // A name until >.
  Status push_name(char c) {
    if (c == '\n' || c == '<' || (c == '>' && key_.empty() && state_ == State::kName)) return Status::kFailed;
    unread_ += c;
    if (c != '>') {
      key_ += c;
      return Status::kMore;
    }
    if (state_ == State::kName) {
      function_ = std::exchange(key_, {});
      enter(State::kParameters);
    } else {
      begin_value();
    }
    return Status::kMore;
  }

  // Only at a tag, because a function's name that no tag follows may be prose about calls.
  void begin() {
    if (begun_) return;
    begun_ = true;
    name_ = function_;
    unread_ = std::string(tag_);
  }

  void begin_value() {
    types_ = tools_.find(function_, key_);
    arguments_ += count_++ == 0 ? "{" : ", ";
    append_json_string(arguments_, std::exchange(key_, {}));
    arguments_ += types_.only_string() ? ": \"" : ": ";
    first_byte_ = true;
    value_.clear();
    unread_.clear();
    enter(State::kValue);
  }

  // Between the tags is a line break, the value, and a line break.
  void push_value(char c) {
    if (std::exchange(first_byte_, false) && c == '\n') return;
    if (c == kEndParameter[tag_.size()]) {
      tag_ += c;
      if (tag_ == kEndParameter) end_value();
      return;
    }
    flush_held();
    if (c == '\n') {
      break_ = true;
    } else if (c == '<') {
      tag_ = "<";
    } else {
      append(c);
    }
  }

  void append(char c) {
    if (types_.only_string()) {
      append_json_character(arguments_, c);
    } else {
      value_ += c;
    }
  }

  // What was kept back was not the end of the value.
  void flush_held() {
    if (std::exchange(break_, false)) append('\n');
    for (const char c : std::exchange(tag_, {})) append(c);
  }

  void end_value() {
    break_ = false;
    arguments_ += types_.only_string() ? "\"" : argument_json(value_, types_);
    enter(State::kParameters);
  }

  void enter(State state) {
    state_ = state;
    tag_.clear();
  }

  const ToolTypes& tools_;
  State state_ = State::kFunction;
  std::string function_;
  std::string key_;  // or the function's name, while it arrives
  std::size_t count_ = 0;
  ParameterTypes types_;
  std::string value_;  // that is not passed on as it arrives
  bool first_byte_ = false;
  bool break_ = false;  // a line break that may be the one before </parameter>, ahead of tag_
};

}  // namespace

std::unique_ptr<CallParser> make_xml_call_parser(const ToolTypes& tools) {
  return std::make_unique<XmlCallParser>(tools);
}

}  // namespace thalweg::text
