#include "text/call_parser.h"

namespace thalweg::text {

bool is_call_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

CallParser::Status CallParser::push_end_tag(char c) {
  static constexpr std::string_view kEnd = "</tool_call>";
  const bool blank = tag_.empty() && is_call_blank(c);
  if (!blank && c != kEnd[tag_.size()]) return Status::kFailed;
  unread_ += c;
  if (!blank) tag_ += c;
  return tag_ == kEnd ? Status::kEnded : Status::kMore;
}

std::unique_ptr<CallParser> make_call_parser(ToolCallFormat format, const ToolTypes& tools) {
  return format == ToolCallFormat::kXml ? make_xml_call_parser(tools) : make_json_call_parser();
}

}  // namespace thalweg::text
