#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "text/call_parser.h"
#include "text/tool_types.h"
#include "thalweg/chat.h"

namespace thalweg {
namespace {

using text::CallParser;

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kToolCall = "<tool_call>";

}  // namespace

// Takes one byte after the other, so that it does not matter how the text was cut. Blanks and what may become a tag are
// held back until the next bytes decide.
class AnswerParser::Impl {
 public:
  Impl(ToolCallFormat format, bool thinking, std::string_view tools)
      : format_(format), tools_(tools), state_(thinking ? State::kReasoningStart : State::kStart) {}

  Delta push(std::string_view text) {
    for (const char c : text) push(c);
    return std::exchange(delta_, {});
  }

  Delta finish() {
    if (call_) {
      call_->finish();
      take_output();
      if (!call_->begun()) refuse_call();
      call_.reset();
    }
    if (state_ != State::kBehindCall || !tag_.empty()) flush();
    return std::exchange(delta_, {});
  }

  bool called() const { return calls_ > 0; }

 private:
  enum class State : std::uint8_t {
    kStart,
    kReasoningStart,  // line breaks are the template's
    kReasoning,
    kContentStart,  // behind </think>, where line breaks are the template's as well
    kContent,
    kBehindCall,  // blanks are the template's, if nothing but calls follows
  };

  void push(char c) {
    if (call_) return push_to_call(c);
    if (!tag_.empty()) {
      if (is_tag_beginning(tag_ + c)) {
        tag_ += c;
        return end_tag();
      }
      flush();
    }
    if (c == '<' && is_tag_beginning("<")) {
      tag_ = "<";
    } else {
      push_text(c);
    }
  }

  bool is_reasoning() const { return state_ == State::kReasoningStart || state_ == State::kReasoning; }

  bool is_tag_beginning(std::string_view text) const {
    if (is_reasoning() && kEndThink.starts_with(text)) return true;
    if (state_ == State::kStart || state_ == State::kReasoningStart) {
      if (kThink.starts_with(text)) return true;
    }
    return !is_reasoning() && !tools_.empty() && kToolCall.starts_with(text);
  }

  void end_tag() {
    if (tag_ == kThink || tag_ == kEndThink) {
      state_ = tag_ == kThink ? State::kReasoningStart : State::kContentStart;
      blanks_.clear();
      tag_.clear();
    } else if (tag_ == kToolCall) {
      call_ = text::make_call_parser(format_, tools_);
      keep_blanks_before_call();
      tag_.clear();
    }
  }

  // Contents are not trimmed where calls are JSON: all blanks but the line break before the call are the content's.
  void keep_blanks_before_call() {
    if (state_ != State::kContent || format_ != ToolCallFormat::kJson) return;
    const std::size_t kept = blanks_.size() - (blanks_.ends_with('\n') ? 1 : 0);
    delta_.content += blanks_.substr(0, kept);
    blanks_.erase(0, kept);
  }

  void push_text(char c) {
    if (c == '\n' || (!is_reasoning() && text::is_call_blank(c))) {
      const bool start = state_ == State::kReasoningStart || state_ == State::kContentStart;
      if (c != '\n' || !start || !blanks_.empty()) blanks_ += c;
      return;
    }
    flush();
    text() += c;
  }

  std::string& text() { return is_reasoning() ? delta_.reasoning : delta_.content; }

  // What was held back is text, or more text follows it.
  void flush() {
    state_ = is_reasoning() ? State::kReasoning : State::kContent;
    text() += std::exchange(blanks_, {});
    text() += std::exchange(tag_, {});
  }

  void push_to_call(char c) {
    const CallParser::Status status = call_->push(c);
    take_output();
    if (status == CallParser::Status::kMore) return;
    state_ = State::kBehindCall;
    if (status == CallParser::Status::kFailed) refuse_call();
    call_.reset();
    if (status == CallParser::Status::kFailed) push(c);
  }

  // The call's text is content. If it ends with <, that may begin the next call.
  void refuse_call() {
    std::string_view unread = call_->unread();
    const bool tag = unread.ends_with('<');
    if (tag) unread.remove_suffix(1);
    state_ = State::kContent;
    delta_.content += std::exchange(blanks_, {});
    delta_.content += unread;
    if (tag) tag_ = "<";
  }

  void take_output() {
    if (!call_->begun()) return;
    std::string name = call_->take_name();
    std::string arguments = call_->take_arguments();
    if (!name.empty()) {
      blanks_.clear();
      delta_.calls.push_back({calls_++, std::move(name), std::move(arguments)});
    } else if (!arguments.empty()) {
      if (delta_.calls.empty()) delta_.calls.push_back({calls_ - 1, {}, {}});
      delta_.calls.back().arguments += arguments;
    }
  }

  ToolCallFormat format_;
  text::ToolTypes tools_;
  State state_;
  std::string blanks_;  // ahead of tag_, or of the call
  std::string tag_;     // the beginning of a tag
  std::unique_ptr<CallParser> call_;
  std::size_t calls_ = 0;
  Delta delta_;  // since the last push
};

AnswerParser::AnswerParser(ToolCallFormat format, bool thinking, std::string_view tools)
    : impl_(std::make_unique<Impl>(format, thinking, tools)) {}
AnswerParser::AnswerParser(AnswerParser&& other) noexcept = default;
AnswerParser& AnswerParser::operator=(AnswerParser&& other) noexcept = default;
AnswerParser::~AnswerParser() = default;

AnswerParser::Delta AnswerParser::push(std::string_view text) { return impl_->push(text); }
AnswerParser::Delta AnswerParser::finish() { return impl_->finish(); }
bool AnswerParser::called() const { return impl_->called(); }

}  // namespace thalweg
