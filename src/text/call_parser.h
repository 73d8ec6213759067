#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "text/tool_types.h"
#include "thalweg/chat.h"

namespace thalweg::text {

// Parses one call, from behind <tool_call> until </tool_call>, byte by byte.
class CallParser {
 public:
  enum class Status : std::uint8_t {
    kMore,
    kEnded,   // the byte was the last one of </tool_call>
    kFailed,  // the byte cannot follow, and was not taken; unread() is not of a call
  };

  CallParser() = default;
  CallParser(const CallParser&) = delete;
  CallParser& operator=(const CallParser&) = delete;
  virtual ~CallParser() = default;

  virtual Status push(char c) = 0;
  // The text ends here. What is left of an argument goes to the arguments, everything else stays in unread().
  virtual void finish() = 0;

  bool begun() const { return begun_; }  // it is a call and its name is known
  std::string take_name() { return std::exchange(name_, {}); }
  std::string take_arguments() { return std::exchange(arguments_, {}); }  // what came since the last time
  const std::string& unread() const { return unread_; }  // the text that is neither in name nor arguments yet

 protected:
  // Matches a tag that arrives byte by byte, with blanks before it, at the end of unread_.
  Status push_end_tag(char c);

  bool begun_ = false;
  std::string name_;
  std::string arguments_;
  std::string unread_ = "<tool_call>";
  std::string tag_;  // the beginning of a tag that unread_ ends with
};

// tools outlives the parser.
std::unique_ptr<CallParser> make_call_parser(ToolCallFormat format, const ToolTypes& tools);
std::unique_ptr<CallParser> make_json_call_parser();
std::unique_ptr<CallParser> make_xml_call_parser(const ToolTypes& tools);

bool is_call_blank(char c);  // between tags, and between the tokens of JSON

}  // namespace thalweg::text
